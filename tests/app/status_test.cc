#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "app/status/cluster_view.h"
#include "app/status/exposition.h"
#include "app/status/http_fetch.h"
#include "app/status/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/draft_metrics.h"
#include "metrics/gateway_metrics.h"
#include "metrics/registry.h"
#include "metrics/target_metrics.h"
#include "nlohmann/json.hpp"

namespace specfabric::app {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

Exposition Parsed(const std::string& text) { return Exposition::Parse(text).value(); }

TEST(ExpositionTest, ReadsWhatTheRegistryWrites) {
  metrics::Registry registry;
  registry.SetBuildInfo("draft", "1.2", "a \"quoted\\\" name\nof two lines");
  metrics::DraftMetrics draft(registry);
  draft.sessions.Set(7);
  draft.CountRequest(0);
  draft.CountRequest(2);
  draft.CountRequest(2);
  draft.draft_seconds.Observe(0.25);
  const Exposition read = Parsed(registry.Render());
  EXPECT_EQ(read.Label("specfabric_build_info", "model"), "a \"quoted\\\" name\nof two lines");
  EXPECT_EQ(read.Sum("specfabric_draft_sessions"), 7);
  EXPECT_EQ(read.Sum("specfabric_draft_requests_total"), 3);
  EXPECT_EQ(read.Sum("specfabric_draft_requests_total", {{"status", "busy"}}), 2);
  EXPECT_EQ(read.Sum("specfabric_draft_seconds_sum"), 0.25);
  EXPECT_EQ(read.Sum("specfabric_draft_seconds_bucket", {{"le", "+Inf"}}), 1);
  EXPECT_FALSE(read.Has("specfabric_gateway_targets_up"));
}

TEST(ExpositionTest, ReadsSpecialValuesAndNothingAtAll) {
  const Exposition read = Parsed("# HELP a b\n\na{} +Inf\nb 1e-3 \nc{x=\"1\",} -4");
  EXPECT_GT(read.Sum("a"), 1e300);
  EXPECT_EQ(read.Sum("c", {{"x", "1"}}), -4);
  EXPECT_EQ(read.Sum("nothing"), 0);
  EXPECT_EQ(read.Label("nothing", "x"), "");
  EXPECT_TRUE(Parsed("").Of("a").empty());
}

TEST(ExpositionTest, BadLinesAreNamed) {
  for (const char* bad : {"a", "a{x=\"1\" 2", "a{x=1} 2", "a{x=\"1} 2", "a{=\"1\"} 2", "{} 1",
                          "a x", "a{x=\"\\", "<html>"}) {
    const auto read = Exposition::Parse(std::string("ok 1\n") + bad);
    ASSERT_FALSE(read.ok()) << bad;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("line 2")) << bad;
  }
}

ProcessSnapshot MakeSnapshot(const std::string& admin, metrics::Registry* registry) {
  ProcessSnapshot snapshot;
  snapshot.admin = admin;
  snapshot.metrics = Exposition::Parse(registry->Render());
  return snapshot;
}

// A group and its draft, at two moments.
class ClusterViewTest : public ::testing::Test {
 protected:
  ClusterViewTest() {
    target_registry_.SetBuildInfo("target", "1", "big");
    draft_registry_.SetBuildInfo("draft", "1", "small");
    gateway_registry_.SetBuildInfo("gateway", "1", "big");
    target_.running.Set(3);
    target_.kv_blocks_used.Set(25);
    target_.kv_blocks_free.Set(75);
    draft_.capacity.Set(64);
  }
  ClusterSnapshot Now(base::Nanos time) {
    ClusterSnapshot snapshot;
    snapshot.time = time;
    snapshot.gateways.push_back(MakeSnapshot("g:1", &gateway_registry_));
    snapshot.targets.push_back(MakeSnapshot("t:1", &target_registry_));
    snapshot.targets.back().about = {{"listen", "t:2"}, {"verification", "coupled"}};
    snapshot.drafts.push_back(MakeSnapshot("d:1", &draft_registry_));
    return snapshot;
  }

  metrics::Registry target_registry_, draft_registry_, gateway_registry_;
  metrics::TargetMetrics target_{target_registry_, "big", 8};
  metrics::DraftMetrics draft_{draft_registry_};
  metrics::GatewayMetrics gateway_{gateway_registry_};
};

TEST_F(ClusterViewTest, RatesAreOverTheTimeBetweenTwoSnapshots) {
  target_.output_tokens.Increment(1000);
  target_.CountRound(0, 8, 8);
  const ClusterSnapshot before = Now(10 * base::kSecond);
  target_.output_tokens.Increment(50);
  target_.CountRound(0, 6, 3);
  target_.CountRound(0, 6, 2);
  target_.ObserveSpan(metrics::Span::kForward, 4 * base::kMillisecond);
  target_.ObserveSpan(metrics::Span::kForward, 8 * base::kMillisecond);
  draft_.tree_nodes.Increment(30);
  target_.draft_routes.Update(
      {{.worker = "d:2", .model = "small", .latency_seconds = 0.002, .sequences = 3, .misses = 4}});
  const ClusterView view = MakeView(&before, Now(12 * base::kSecond));
  ASSERT_EQ(view.groups.size(), 1u);
  const GroupView& group = view.groups[0];
  EXPECT_EQ(group.model, "big");
  EXPECT_EQ(group.verification, "coupled");
  EXPECT_EQ(group.running, 3);
  EXPECT_EQ(group.kv_used, 0.25);
  EXPECT_EQ(group.tokens_per_second, 25);
  EXPECT_EQ(group.accepted_per_round, 2.5);
  EXPECT_NEAR(*group.acceptance, 5.0 / 12, 1e-9);
  ASSERT_EQ(group.span_ms.size(), 1u);
  EXPECT_NEAR(group.span_ms.at("forward"), 6, 1e-9);
  EXPECT_EQ(view.drafts.at(0).nodes_per_second, 15);
  EXPECT_FALSE(view.drafts.at(0).draft_ms);
  EXPECT_FALSE(view.drafts.at(0).hit_rate);
  ASSERT_EQ(view.routes.size(), 1u);
  EXPECT_EQ(view.routes[0].target, "t:2");
  EXPECT_EQ(view.routes[0].draft, "d:2");
  EXPECT_EQ(view.routes[0].misses, 4);
  EXPECT_NEAR(view.routes[0].latency_ms.value(), 2, 1e-9);
  EXPECT_FALSE(view.routes[0].in_service);
}

TEST_F(ClusterViewTest, HitRateIsOverAllAheadOutcomes) {
  const auto outcome = [this](const char* name, const char* accepted) -> metrics::Counter& {
    return draft_registry_.AddCounter("specfabric_draft_ahead_outcomes_total", "",
                                      {{"outcome", name}, {"accepted", accepted}});
  };
  outcome("hit", "0").Increment(100);
  const ClusterSnapshot before = Now(0);
  outcome("hit", "0").Increment(2);
  outcome("hit", "3").Increment(1);
  outcome("not_grown", "1").Increment(1);
  EXPECT_EQ(MakeView(&before, Now(base::kSecond)).drafts.at(0).hit_rate, 0.75);
}

TEST_F(ClusterViewTest, TheFirstSnapshotHasNoRates) {
  const ClusterView view = MakeView(nullptr, Now(1));
  EXPECT_FALSE(view.groups.at(0).tokens_per_second);
  EXPECT_FALSE(view.gateways.at(0).requests_per_second);
  EXPECT_EQ(view.groups[0].running, 3);
}

TEST_F(ClusterViewTest, ARestartedProcessCountsFromNothing) {
  target_.output_tokens.Increment(1000);
  const ClusterSnapshot before = Now(0);
  metrics::Registry fresh;
  fresh.SetBuildInfo("target", "1", "big");
  metrics::TargetMetrics again(fresh, "big", 8);
  again.output_tokens.Increment(20);
  ClusterSnapshot now = Now(2 * base::kSecond);
  now.targets[0] = MakeSnapshot("t:1", &fresh);
  EXPECT_EQ(MakeView(&before, now).groups.at(0).tokens_per_second, 10);
}

TEST_F(ClusterViewTest, WhoDoesNotAnswerIsShownAsSuch) {
  ClusterSnapshot now = Now(0);
  now.targets[0].metrics = absl::UnavailableError("Connection refused");
  now.drafts.push_back(MakeSnapshot("t:9", &target_registry_));
  metrics::Registry other;
  now.gateways[0] = MakeSnapshot("g:1", &other);
  const ClusterView view = MakeView(nullptr, now);
  EXPECT_TRUE(view.groups.empty());
  EXPECT_EQ(view.drafts.size(), 1u);
  EXPECT_FALSE(view.empty());
  ASSERT_EQ(view.unreachable.size(), 3u);
  const std::string text = ToText(view);
  EXPECT_THAT(text, HasSubstr("Connection refused"));
  EXPECT_THAT(text, HasSubstr("is a target"));
  EXPECT_THAT(text, HasSubstr("not a process of SpecFabric"));
  EXPECT_THAT(text, Not(HasSubstr("GROUPS")));
}

TEST_F(ClusterViewTest, TextAndJsonSayTheSame) {
  const ClusterSnapshot before = Now(0);
  target_.output_tokens.Increment(123);
  target_.draft_routes.Update({{.worker = "d:2", .model = "small", .in_service = true}});
  const ClusterView view = MakeView(&before, Now(base::kSecond));
  const std::string text = ToText(view);
  for (const char* part : {"GATEWAYS", "GROUPS", "DRAFTS", "ROUTES", "123.0", "25%", "0/64"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("UNREACHABLE")));
  const auto json = nlohmann::json::parse(ToJson(view));
  EXPECT_EQ(json["groups"][0]["tokens_per_second"], 123);
  EXPECT_EQ(json["groups"][0]["acceptance"], nullptr);
  EXPECT_EQ(json["routes"][0]["in_service"], true);
  EXPECT_EQ(json["drafts"][0]["capacity"], 64);
  EXPECT_EQ(json["unreachable"], nlohmann::json::array());
}

TEST_F(ClusterViewTest, ALatencyThatNobodyKnowsIsNotZero) {
  target_.draft_routes.Update({{.worker = "d:2", .model = "small", .in_service = true}});
  const ClusterView view = MakeView(nullptr, Now(0));
  EXPECT_FALSE(view.routes.at(0).latency_ms);
  EXPECT_EQ(nlohmann::json::parse(ToJson(view))["routes"][0]["latency_ms"], nullptr);
}

size_t LongestLine(const std::string& text) {
  size_t longest = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
    longest = std::max<size_t>(longest, line.size() - absl::c_count_if(line, continues));
  }
  return longest;
}

// Addresses, names and figures as long as they come.
ClusterView LargeView(int processes, double figure, const std::string& model) {
  const auto address = [](const char* kind, int i) {
    return absl::StrCat("[2001:db8:ffff:ffff:ffff:ffff:", kind, ":", 1000 + i, "]:65535");
  };
  ClusterView view;
  for (int i = 0; i < processes; ++i) {
    view.gateways.push_back(
        {address("aaaa", i), address("aaaa", i), figure, figure, figure, figure});
    GroupView group;
    group.admin = group.listen = address("bbbb", i);
    group.model = model;
    group.verification = "traversal";
    group.running = group.waiting = group.drafts = figure;
    group.kv_used = 1;
    group.tokens_per_second = group.accepted_per_round = figure;
    group.acceptance = 1;
    for (const char* span :
         {"draft_wait", "draft_compute", "transfer", "plan", "forward", "verify", "commit"}) {
      group.span_ms[span] = figure;
    }
    view.groups.push_back(group);
    view.drafts.push_back({address("cccc", i), address("cccc", i), model, figure, figure, figure,
                           figure, figure, 1.0});
    view.routes.push_back({address("bbbb", i), address("dddd", i), model, figure, figure, figure,
                           true, true, figure, figure});
    view.unreachable.push_back({"gateway", address("eeee", i),
                                "no answer in time, and a reason with-a-word-that-is-longer-than-"
                                "any-line-of-a-terminal-of-eighty-columns-can-ever-hold at all"});
  }
  return view;
}

TEST(ReportTest, NoLineIsLongerThan80Columns) {
  const std::vector<std::string> models = {"target", "", std::string(300, 'm'),
                                           "a name of many words that goes on and on and on and on",
                                           "\xe6\xa8\xa1\xe5\x9e\x8b-\xc3\xa9"};
  for (const std::string& model : models) {
    for (double figure : {0.0, 0.00049, 12.3456, 99999.99, 999999.9, 1234567.8, 1e9, 1e18}) {
      for (int processes : {1, 9, 120}) {
        const std::string text = ToText(LargeView(processes, figure, model));
        EXPECT_LE(LongestLine(text), 80u) << figure << "\n" << text.substr(0, 4000);
      }
    }
  }
}

TEST(ReportTest, EveryProcessIsNamedOnceInFull) {
  const ClusterView view = LargeView(3, 1, std::string(100, 'm'));
  const std::string text = ToText(view);
  for (const auto& [name, address] : {std::pair("g3   gateway", view.gateways[2].listen),
                                      {"t1   target ", view.groups[0].listen},
                                      {"d2   draft  ", view.drafts[1].listen},
                                      {"d6   draft  ", view.routes[2].draft}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(name, " ", address)));
  }
  // From target to draft, by these names.
  EXPECT_THAT(text, ContainsRegex("\nt3    d6  slow "));
}

TEST(ReportTest, NamesOfOthersDoNotReachTheTerminalAsTheyAre) {
  ClusterView view = LargeView(1, 1, "a\x1b[2Jb\nc\x7f");
  view.unreachable[0].why = "\x1b]0;title\x07";
  const std::string text = ToText(view);
  EXPECT_THAT(text, HasSubstr("a?[2Jb?c?"));
  for (char c : text) EXPECT_TRUE(c == '\n' || !absl::ascii_iscntrl(c)) << int{c};
}

TEST(TableTest, NumbersHaveSevenCharactersAtMost) {
  for (const auto& [value, decimals, text] : {std::tuple(0.0, 0, "0"),
                                              {1.25, 2, "1.25"},
                                              {0.0, 3, "0.000"},
                                              {12345.678, 3, "12345.7"},
                                              {999999.4, 1, "999999"},
                                              {1234567.0, 0, "1.2M"},
                                              {2.5e9, 1, "2.5G"},
                                              {3e12, 0, "3.0T"},
                                              {1e30, 0, ">999T"},
                                              {-5.5, 1, "-5.5"},
                                              {std::nan(""), 1, "-"},
                                              {HUGE_VAL, 1, "-"}}) {
    EXPECT_EQ(Compact(value, decimals), text);
  }
}

TEST(FetchPagesTest, NobodyThere) {
  // Port 1 of the loopback is nobody's in a test.
  const auto pages = FetchPages({{"127.0.0.1:1", "/"}, {"nonsense", "/"}}, base::kSecond);
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(pages[0].status()));
  EXPECT_FALSE(pages[1].ok());
}

}  // namespace
}  // namespace specfabric::app
