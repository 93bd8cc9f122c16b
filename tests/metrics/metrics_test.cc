#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/draft_metrics.h"
#include "metrics/fabric_metrics.h"
#include "metrics/gateway_metrics.h"
#include "metrics/registry.h"
#include "metrics/target_metrics.h"

namespace specfabric::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::set<std::string> NamesIn(const std::string& text, const std::regex& pattern) {
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    names.insert((*match)[1]);
  }
  return names;
}

TEST(MetricsTest, DocumentedNamesAreTheExposedOnes) {
  Registry registry;
  registry.SetBuildInfo("target", "1.2.3", "m");
  GatewayMetrics gateway(registry);
  TargetMetrics target(registry, "m", 4);
  target.draft_routes.Update({{.worker = "a:1", .model = "d"}});
  target.AddDrafter("a draft model");
  DraftMetrics draft(registry);
  draft.Outcomes(0, 0);
  FabricMetrics fabric(registry, [] {
    FabricCounters counters;
    counters.wires["tcp/lo"] = 0;
    return counters;
  });

  std::ifstream file("docs/metrics.md");
  ASSERT_TRUE(file) << "run from the repository's root";
  std::stringstream text;
  text << file.rdbuf();
  const auto documented =
      NamesIn(text.str(), std::regex("\\| `((?:specfabric_|vllm:)[a-z_]+)` \\|"));
  const auto exposed = NamesIn(registry.Render(), std::regex("# TYPE ([^ ]+) "));
  EXPECT_EQ(documented, exposed);
  EXPECT_GT(exposed.size(), 40u);
}

TEST(MetricsTest, CountersHaveTheirSuffixAndSeriesStartAtZero) {
  Registry registry;
  GatewayMetrics gateway(registry);
  TargetMetrics target(registry, "m", 2);
  DraftMetrics draft(registry);
  const std::string text = registry.Render();
  for (const auto& name : NamesIn(text, std::regex("# TYPE ([^ ]+) counter"))) {
    EXPECT_TRUE(name.ends_with("_total")) << name;
  }
  EXPECT_THAT(text, HasSubstr("specfabric_gateway_requests_total{code=\"503\","
                              "endpoint=\"/v1/chat/completions\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_draft_replies_total{status=\"need_resync\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_draft_evictions_total{reason=\"ttl\"} 0\n"));
}

TEST(MetricsTest, WorkersHaveSeriesWhileTheyAreConnected) {
  Registry registry;
  DraftRouteMetrics routes(registry);
  DraftRoute a = {.worker = "a:1", .model = "d", .latency_seconds = 0.5, .misses = 3};
  DraftRoute b = {.worker = "b:1", .model = "d", .misses = 1};
  routes.Update({a, b});
  a.misses = 5;
  routes.Update({a, b});
  std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("worker_latency_seconds{model=\"d\",worker=\"a:1\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("worker_misses_total{model=\"d\",worker=\"a:1\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("worker_misses_total{model=\"d\",worker=\"b:1\"} 1\n"));
  a.misses = 2;  // connected again
  routes.Update({a});
  text = registry.Render();
  EXPECT_THAT(text, HasSubstr("worker_misses_total{model=\"d\",worker=\"a:1\"} 7\n"));
  EXPECT_THAT(text, Not(HasSubstr("b:1")));
}

TEST(MetricsTest, GatewayCountsByEndpointAndCode) {
  Registry registry;
  GatewayMetrics metrics(registry);
  metrics.CountRequest(Endpoint::kChat, 429);
  metrics.CountRequest(Endpoint::kChat, 429);
  metrics.CountRequest(Endpoint::kModels, 200);
  metrics.CountRequest(Endpoint::kOther, 418);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("{code=\"429\",endpoint=\"/v1/chat/completions\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("{code=\"200\",endpoint=\"/v1/models\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("{code=\"500\",endpoint=\"other\"} 1\n"));
}

TEST(MetricsTest, RoundsFeedTheAliasesToo) {
  Registry registry;
  TargetMetrics metrics(registry, "m", 3);
  metrics.CountRound(0, 0, 0);
  metrics.CountRound(0, 7, 2);
  metrics.CountRound(2, 7, 5);  // deeper than the positions counted
  EXPECT_EQ(metrics.rounds.Value(), 3);
  EXPECT_EQ(metrics.drafted_tokens.Value(), 14);
  EXPECT_EQ(metrics.accepted_tokens.Value(), 7);
  EXPECT_EQ(metrics.accepted_at[0]->Value(), 2);
  EXPECT_EQ(metrics.accepted_at[1]->Value(), 2);
  EXPECT_EQ(metrics.accepted_at[2]->Value(), 3);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_verifications_total{coupling=\"coupled\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_verifications_total{coupling=\"traversal\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 2"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_draft_tokens_total{engine=\"0\","
                              "model_name=\"m\"} 14\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\","
                              "model_name=\"m\",position=\"2\"} 3\n"));
}

TEST(MetricsTest, SchedulingFeedsTheAliasesToo) {
  Registry registry;
  TargetMetrics metrics(registry, "m", 1);
  metrics.CountScheduling(1, 100, 64);
  metrics.CountScheduling(2, 50, 0);
  EXPECT_EQ(metrics.preemptions.Value(), 3);
  EXPECT_EQ(metrics.cache_queries.Value(), 150);
  EXPECT_EQ(metrics.cache_hits.Value(), 64);
  const std::string text = registry.Render();
  const std::string labels = "{engine=\"0\",model_name=\"m\"}";
  EXPECT_THAT(text, HasSubstr("vllm:num_preemptions_total" + labels + " 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_queries_total" + labels + " 150\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_hits_total" + labels + " 64\n"));
}

TEST(MetricsTest, SpansBeginAtTwoMicroseconds) {
  Registry registry;
  TargetMetrics metrics(registry, "m", 1);
  metrics.ObserveSpan(Span::kTransfer, 1500);
  metrics.ObserveSpan(Span::kTransfer, 3 * base::kSecond);
  const std::string text = registry.Render();
  EXPECT_THAT(text,
              HasSubstr("specfabric_round_span_seconds_bucket{span=\"transfer\",le=\"2e-06\"} 1"));
  EXPECT_THAT(text,
              HasSubstr("specfabric_round_span_seconds_bucket{span=\"transfer\",le=\"+Inf\"} 2"));
  EXPECT_THAT(text, HasSubstr("specfabric_round_span_seconds_count{span=\"plan\"} 0"));
}

TEST(MetricsTest, ExactnessIsOneOfThree) {
  Registry registry;
  TargetMetrics metrics(registry, "m", 1);
  for (size_t i = 0; i < kExactnessNames.size(); ++i) {
    metrics.SetExactness(static_cast<int>(i));
    for (size_t j = 0; j < kExactnessNames.size(); ++j) {
      EXPECT_THAT(registry.Render(),
                  HasSubstr(absl::StrCat("specfabric_target_exactness{exactness=\"",
                                         kExactnessNames[j], "\"} ", i == j ? 1 : 0)));
    }
  }
}

TEST(MetricsTest, UnknownStatusesAreNotCounted) {
  Registry registry;
  DraftMetrics metrics(registry);
  metrics.CountRequest(-1);
  metrics.CountRequest(6);
  metrics.CountRequest(2);
  EXPECT_EQ(metrics.requests[2]->Value(), 1);
  EXPECT_EQ(metrics.requests[5]->Value(), 0);
}

TEST(MetricsTest, FabricTotalsAreCopiedWhenLookedAt) {
  Registry registry;
  FabricCounters totals;
  {
    FabricMetrics metrics(registry, [&] { return totals; });
    totals.frames_sent = 5;
    EXPECT_THAT(registry.Render(),
                HasSubstr("specfabric_fabric_frames_total{direction=\"sent\"} 5\n"));
    totals.frames_sent = 12;
    totals.malformed = 1;
    const std::string text = registry.Render();
    EXPECT_THAT(text, HasSubstr("specfabric_fabric_frames_total{direction=\"sent\"} 12\n"));
    EXPECT_THAT(text, HasSubstr("specfabric_fabric_malformed_messages_total 1\n"));
  }
  totals.frames_sent = 99;  // nobody reads it any more
  EXPECT_THAT(registry.Render(), Not(HasSubstr("99")));
}

TEST(MetricsTest, EveryFabricTotalHasASeriesOfItsOwn) {
  Registry registry;
  FabricCounters totals;
  uint64_t next = 1000;
  for (uint64_t FabricCounters::*field : {&FabricCounters::frames_sent,
                                          &FabricCounters::frames_received,
                                          &FabricCounters::bytes_sent,
                                          &FabricCounters::bytes_received,
                                          &FabricCounters::bytes_copied,
                                          &FabricCounters::tensors_sent,
                                          &FabricCounters::tensors_received,
                                          &FabricCounters::stale_tensors,
                                          &FabricCounters::refused_tensors,
                                          &FabricCounters::late_tensors,
                                          &FabricCounters::opened,
                                          &FabricCounters::closed,
                                          &FabricCounters::connect_failures,
                                          &FabricCounters::refused_secrets,
                                          &FabricCounters::refused_wires,
                                          &FabricCounters::silent_peers,
                                          &FabricCounters::restarts,
                                          &FabricCounters::refused_frames,
                                          &FabricCounters::unattributed_frames,
                                          &FabricCounters::send_errors,
                                          &FabricCounters::back_pressure,
                                          &FabricCounters::faults,
                                          &FabricCounters::wakeups,
                                          &FabricCounters::handshakes,
                                          &FabricCounters::refused_hellos,
                                          &FabricCounters::malformed,
                                          &FabricCounters::reconnects,
                                          &FabricCounters::releasing}) {
    totals.*field = next++;
  }
  FabricMetrics metrics(registry, [&] { return totals; });
  const std::string text = registry.Render();
  for (uint64_t value = 1000; value < next; ++value) {
    EXPECT_THAT(NamesIn(text, std::regex("(specfabric_fabric_.*) " + std::to_string(value) + "\n")),
                SizeIs(1))
        << value;
  }
}

TEST(MetricsTest, WiresComeAndGo) {
  Registry registry;
  FabricCounters totals;
  FabricMetrics metrics(registry, [&] { return totals; });
  EXPECT_THAT(registry.Render(), Not(HasSubstr("specfabric_fabric_connections{")));
  totals.wires = {{"tcp/eth0", 2}, {"posix/memory", 1}};
  std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"tcp/eth0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"posix/memory\"} 1\n"));
  totals.wires = {{"tcp/eth0", 3}};
  text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"tcp/eth0\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"posix/memory\"} 0\n"));
}

TEST(MetricsTest, RefreshMovesAndEnds) {
  Registry registry;
  int calls = 0;
  std::optional<Registry::Refresh> kept;
  {
    Registry::Refresh refresh = registry.AddRefresh([&] { ++calls; });
    kept.emplace(std::move(refresh));
  }
  registry.Render();
  EXPECT_EQ(calls, 1);
  *kept = Registry::Refresh();
  registry.Render();
  EXPECT_EQ(calls, 1);
}

TEST(MetricsTest, CountsFromManyThreads) {
  Registry registry;
  TargetMetrics metrics(registry, "m", 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        metrics.CountRound(1, 3, 1);
        metrics.ObserveSpan(Span::kPlan, 10);
        if (i % 250 == 0) registry.Render();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(metrics.rounds.Value(), 4000);
  EXPECT_EQ(metrics.accepted_tokens.Value(), 4000);
  EXPECT_THAT(registry.Render(),
              HasSubstr("specfabric_round_span_seconds_count{span=\"plan\"} 4000"));
}

}  // namespace
}  // namespace specfabric::metrics
