// Streams before and between their tokens: when the header is sent, and what keeps the connection
// alive.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

constexpr const char* kStream = R"({"prompt": "no", "max_tokens": 9, "seed": 4, "stream": true})";
constexpr base::Nanos kSoon = 20 * base::kMillisecond;
constexpr base::Nanos kNever = 3600 * base::kSecond;

class StreamTest : public GatewayFixture {
 protected:
  // A target that sends `tokens` of a first attempt and then nothing; -1: all.
  void Start(int32_t tokens, base::Nanos header_delay, base::Nanos keep_alive,
             base::Nanos target_wait = 5 * base::kSecond) {
    FakeTargetOptions target = TargetOptions();
    target.stall_after = tokens;
    AddTarget(std::move(target));
    GatewayOptions options;
    options.stream_header_delay = header_delay;
    options.stream_keep_alive = keep_alive;
    options.target_wait = target_wait;
    StartGateway(std::move(options), 1);
  }
  // The target stays connected, but takes no more work.
  void DrainTarget() {
    WaitFor([&] { return targets_[0]->peers() == 1; }, "the target knows the gateway");
    targets_[0]->SendDrain();
    WaitFor([&] { return Metric("specfabric_gateway_targets_up") == 0; }, "it drains");
  }
};

TEST_F(StreamTest, TheHeaderComesBeforeTheFirstToken) {
  Start(/*tokens=*/0, kSoon, kNever);
  HttpClient client = Client();
  const ClientResponse header = client.Open("/v1/completions", kStream);
  EXPECT_EQ(header.status, 200);
  EXPECT_EQ(header.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(gateway_->in_flight(), 1);
  client.Close();
  WaitFor([&] { return gateway_->in_flight() == 0; }, "the client's leaving is noticed");
  WaitFor([&] { return targets_[0]->cancels().size() == 1; }, "the target is told");
}

TEST_F(StreamTest, CommentsComeWhileThereIsNoToken) {
  Start(/*tokens=*/0, kSoon, kSoon);
  HttpClient client = Client();
  EXPECT_EQ(client.Open("/v1/completions", kStream).status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.NextEventOrComment(), ": keep-alive");
}

TEST_F(StreamTest, CommentsComeBetweenTokens) {
  Start(/*tokens=*/3, kSoon, kSoon);
  HttpClient client = Client();
  EXPECT_EQ(client.Open("/v1/completions", kStream).status, 200);
  EXPECT_THAT(client.NextEvent(), HasSubstr("\"text\""));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.NextEventOrComment(), ": keep-alive");
}

TEST_F(StreamTest, AQuickStreamHasNoComments) {
  Start(/*tokens=*/-1, kNever, kNever);
  HttpClient client = Client();
  EXPECT_EQ(client.Open("/v1/completions", kStream).status, 200);
  std::vector<std::string> all;
  for (std::string next = client.NextEventOrComment(); !next.empty();) {
    EXPECT_FALSE(next.starts_with(':')) << next;
    all.push_back(std::exchange(next, client.NextEventOrComment()));
  }
  EXPECT_EQ(all.back(), "[DONE]");
}

// Clients try again by the status, so an error that is known soon has one.
TEST_F(StreamTest, AWaitForATargetEndsWithAStatus) {
  Start(/*tokens=*/-1, kSoon, kNever, 500 * base::kMillisecond);
  DrainTarget();
  const ClientResponse response = Client().Open("/v1/completions", kStream);
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
}

TEST_F(StreamTest, ARefusalOfTheTargetIsAStatus) {
  FakeTargetOptions target = TargetOptions();
  target.refusal = schemas::Finish::kOverloaded;
  AddTarget(std::move(target));
  StartGateway();
  EXPECT_EQ(Client().Open("/v1/completions", kStream).status, 429);
}

TEST_F(StreamTest, ALongWaitForATargetIsAStream) {
  Start(/*tokens=*/-1, kSoon, 100 * base::kMillisecond, 1 * base::kSecond);
  DrainTarget();
  HttpClient client = Client();
  EXPECT_EQ(client.Open("/v1/completions", kStream).status, 200);
  EXPECT_EQ(client.NextEventOrComment(), ": keep-alive");
  const std::vector<std::string> events = client.RestOfEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[0])["error"]["code"], "no_target");
  EXPECT_EQ(events[1], "[DONE]");
  WaitFor(
      [&] {
        return Metric(
                   R"(specfabric_gateway_requests_total{code="503",endpoint="/v1/completions"})") ==
               1;
      },
      "it is counted");
}

TEST_F(StreamTest, AnErrorAfterTheHeaderIsAnEvent) {
  Start(/*tokens=*/0, kSoon, kNever);
  HttpClient client = Client();
  const std::string body = R"({"prompt": "no", "max_tokens": 9, "stream": true, "timeout": 0.5})";
  EXPECT_EQ(client.Open("/v1/completions", body).status, 200);
  const std::vector<std::string> events = client.RestOfEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[0])["error"]["code"], "timeout");
  EXPECT_EQ(events[1], "[DONE]");
}

// A client of HTTP/1.0 that has shut down its sending side can be probed once the header is sent.
TEST_F(StreamTest, AHalfClosedClientOfHttp10IsKept) {
  Start(/*tokens=*/0, kSoon, kNever);
  HttpClient client = Client();
  client.SendRaw("POST /v1/completions HTTP/1.0\r\nContent-Length: " +
                 std::to_string(std::string(kStream).size()) + "\r\n\r\n" + kStream);
  client.ShutdownSending();
  WaitFor([&] { return targets_[0]->submits().size() == 1; }, "it is under way");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // past the first probe
  EXPECT_EQ(gateway_->in_flight(), 1);
  EXPECT_TRUE(targets_[0]->cancels().empty());
}

}  // namespace
}  // namespace specfabric::gateway
