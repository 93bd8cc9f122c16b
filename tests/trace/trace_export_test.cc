#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "trace/chrome.h"
#include "trace/otlp.h"
#include "trace/recorder.h"
#include "trace/traceparent.h"

namespace specfabric::trace {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr const char* kHeader = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceparentTest, ReadsAndWrites) {
  const auto parent = ParseTraceparent(kHeader);
  ASSERT_TRUE(parent.has_value());
  EXPECT_EQ(parent->context.trace_high, 0x0af7651916cd43ddu);
  EXPECT_EQ(parent->context.trace_low, 0x8448eb211c80319cu);
  EXPECT_EQ(parent->context.span, 0xb7ad6b7169203331u);
  EXPECT_TRUE(parent->sampled);
  EXPECT_EQ(FormatTraceparent(*parent), kHeader);
  const auto unsampled =
      ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
  ASSERT_TRUE(unsampled.has_value());
  EXPECT_FALSE(unsampled->sampled);
}

TEST(TraceparentTest, ReadsTheKnownFieldsOfALaterVersion) {
  EXPECT_TRUE(ParseTraceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what"));
  EXPECT_FALSE(ParseTraceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01what"));
}

TEST(TraceparentTest, IgnoresMalformedHeaders) {
  for (const char* header : {"", "00", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                             "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                             "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                             "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                             "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                             "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                             "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01"}) {
    EXPECT_FALSE(ParseTraceparent(header).has_value()) << header;
  }
}

ProcessInfo Process() {
  return {.role = "gateway",
          .address = "a:1",
          .version = "1",
          .instance = "0af76519-16cd-43dd-8448-eb211c80319c",
          .host = "node",
          .pid = 7,
          .epoch = 1'000'000'000};
}

Span Traced() {
  return {.name = "request",
          .parent = {1, 2, 3},
          .id = 4,
          .begin = 5'000,
          .end = 9'000,
          .attributes = {{"code", int64_t{200}}, {"ms", 1.5}, {"id", std::string("a\"\xff")}}};
}

// The objects of lines that end with commas, as in a file.
std::vector<Json> Events(const std::string& lines) {
  std::vector<Json> events;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    if (line == "[") continue;
    EXPECT_TRUE(line.ends_with("},")) << line;
    events.push_back(Json::parse(line.substr(0, line.size() - 1)));
  }
  return events;
}

TEST(ChromeTest, ASpanOfATraceIsAPairOfEvents) {
  const auto events = Events(ChromeLines(Traced(), Process()));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["ph"], "b");
  EXPECT_EQ(events[1]["ph"], "e");
  for (const Json& event : events) {
    EXPECT_EQ(event["id"], "00000000000000010000000000000002");
    EXPECT_EQ(event["pid"], events[0]["pid"]);
    EXPECT_EQ(event["name"], "request");
  }
  EXPECT_DOUBLE_EQ(events[0]["ts"], 1'000'005);
  EXPECT_DOUBLE_EQ(events[1]["ts"], 1'000'009);
  EXPECT_EQ(events[0]["args"]["parent_span_id"], "0000000000000003");
  EXPECT_EQ(events[0]["args"]["span_id"], "0000000000000004");
  EXPECT_EQ(events[0]["args"]["code"], 200);
}

// As in containers of several machines whose files are concatenated.
TEST(ChromeTest, ProcessesWithTheSamePidHaveSeparateRows) {
  ProcessInfo other = Process();
  other.instance = "1bf76519-16cd-43dd-8448-eb211c80319c";
  const auto header = Events(ChromeHeader(Process())), others = Events(ChromeHeader(other));
  EXPECT_EQ(header[0]["args"]["name"], "gateway a:1 (node, pid 7)");
  EXPECT_NE(header[0]["pid"], others[0]["pid"]);
  EXPECT_EQ(header[0]["pid"], Events(ChromeLines(Traced(), Process()))[0]["pid"]);
  EXPECT_EQ(others[0]["pid"], Events(ChromeLines(Traced(), other))[0]["pid"]);
}

TEST(ChromeTest, OtherSpansAreCompleteEvents) {
  Span span = Traced();
  span.parent = {};
  const auto events = Events(ChromeLines(span, Process()));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_DOUBLE_EQ(events[0]["dur"], 4);
  EXPECT_FALSE(events[0]["args"].contains("trace_id"));
}

TEST(OtlpTest, BodiesFollowTheProtocol) {
  Span untraced = Traced();
  untraced.parent = {};
  Span root = Traced();
  root.parent.span = 0;
  const Json body = Json::parse(OtlpBody({Traced(), untraced, root}, Process()));
  const Json& resource = body["resourceSpans"][0];
  EXPECT_EQ(resource["resource"]["attributes"][0]["key"], "service.name");
  EXPECT_EQ(resource["resource"]["attributes"][0]["value"]["stringValue"], "specfabric-gateway");
  std::map<std::string, Json> about;
  for (const Json& one : resource["resource"]["attributes"]) about[one["key"]] = one["value"];
  EXPECT_EQ(about["service.instance.id"]["stringValue"], Process().instance);
  EXPECT_EQ(about["specfabric.listen"]["stringValue"], "a:1");
  EXPECT_EQ(about["host.name"]["stringValue"], "node");
  EXPECT_EQ(about["process.pid"]["intValue"], "7");
  const Json& spans = resource["scopeSpans"][0]["spans"];
  ASSERT_EQ(spans.size(), 2u) << "only those of a trace";
  EXPECT_EQ(spans[0]["traceId"], "00000000000000010000000000000002");
  EXPECT_EQ(spans[0]["spanId"], "0000000000000004");
  EXPECT_EQ(spans[0]["parentSpanId"], "0000000000000003");
  EXPECT_EQ(spans[0]["startTimeUnixNano"], "1000005000");
  EXPECT_EQ(spans[0]["endTimeUnixNano"], "1000009000");
  EXPECT_EQ(spans[0]["attributes"][0]["value"]["intValue"], "200");
  EXPECT_DOUBLE_EQ(spans[0]["attributes"][1]["value"]["doubleValue"], 1.5);
  EXPECT_FALSE(spans[1].contains("parentSpanId"));
}

TEST(ThisProcessTest, EveryRunHasItsOwnInstance) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string id = ThisProcess("draft", "127.0.0.1:0", "1").instance;
    EXPECT_THAT(id, MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-"
                                 "[0-9a-f]{12}"));
    EXPECT_TRUE(seen.insert(id).second) << id;
  }
}

TEST(OtlpTest, ParsesEndpoints) {
  const auto plain = ParseOtlpEndpoint("http://collector:4318");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->host, "collector");
  EXPECT_EQ(plain->port, "4318");
  EXPECT_EQ(plain->path, "/v1/traces");
  const auto v6 = ParseOtlpEndpoint("http://[::1]:80/otlp/v1/traces");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->path, "/otlp/v1/traces");
  for (const char* wrong : {"", "collector:4318", "https://collector:4318", "http://collector",
                            "http://:4318", "http://collector:", "http://collector:web"}) {
    const auto refused = ParseOtlpEndpoint(wrong);
    ASSERT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("http://host:port"));
  }
}

class RecorderTest : public testing::Test {
 protected:
  ~RecorderTest() override { std::filesystem::remove(path_); }
  std::string Text() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  const std::string path_ =
      absl::StrCat(testing::TempDir(), "/trace_", ::getpid(), "_",
                   testing::UnitTest::GetInstance()->current_test_info()->name(), ".json");
};

TEST_F(RecorderTest, ProcessesShareAFile) {
  for (int process = 0; process < 2; ++process) {
    auto recorder = Recorder::Start({.file = path_}, ThisProcess("target", "a:1", "1"));
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) (*recorder)->Record(Traced());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ((*recorder)->stats().recorded, 300u);
  }
  const std::string text = Text();
  EXPECT_TRUE(text.starts_with("[\n"));
  EXPECT_EQ(Events(text).size(), 2u * (1 + 2 * 300));
}

TEST_F(RecorderTest, ReportsInvalidOptions) {
  const auto nowhere =
      Recorder::Start({.file = "/no/such/folder/t.json"}, ThisProcess("target", "a:1", "1"));
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("/no/such/folder/t.json"));
  const auto wrong = Recorder::Start({.endpoint = "x"}, ThisProcess("target", "a:1", "1"));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RecorderTest, AMissingCollectorLosesOnlyItsSpans) {
  {
    auto recorder = Recorder::Start({.file = path_, .endpoint = "http://127.0.0.1:1"},
                                    ThisProcess("target", "a:1", "1"));
    ASSERT_TRUE(recorder.ok());
    (*recorder)->Record(Traced());
    for (int i = 0; i < 500 && (*recorder)->stats().lost == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ((*recorder)->stats().lost, 1u);
  }
  EXPECT_EQ(Events(Text()).size(), 3u) << "the file has it";
}

TEST_F(RecorderTest, SamplesUnlessTheClientDecides) {
  const auto start = [&](double sample) {
    return *Recorder::Start({.file = path_, .sample = sample}, ThisProcess("gateway", "a:1", "1"));
  };
  const auto none = start(0), some = start(0.25), all = start(1);
  EXPECT_EQ(none->Begin(kHeader).trace_low, 0x8448eb211c80319cu);
  const std::string unsampled = std::string(kHeader).substr(0, 53) + "00";
  EXPECT_FALSE(all->Begin(unsampled).traced());
  EXPECT_FALSE(none->Begin("").traced());
  EXPECT_TRUE(all->Begin("").traced());
  EXPECT_TRUE(all->Begin("nonsense").traced()) << "as if there were none";
  EXPECT_EQ(all->Begin("").span, 0u);
  int traced = 0;
  for (int i = 0; i < 4000; ++i) traced += some->Begin("").traced();
  EXPECT_NEAR(traced, 1000, 200);
}

}  // namespace
}  // namespace specfabric::trace
