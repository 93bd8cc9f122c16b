#include <algorithm>
#include <cstdlib>
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
#include "tests/metrics/metrics_reference.h"

namespace specfabric::metrics {
namespace {

using ::testing::AllOf;
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

// SPECFABRIC_UPDATE_DOCS=1 writes it instead.
TEST(MetricsTest, TheReferenceIsUpToDate) {
  constexpr const char* kPath = "docs/metrics.md";
  const std::string reference = MetricsReference();
  if (std::getenv("SPECFABRIC_UPDATE_DOCS") != nullptr) {
    ASSERT_TRUE(std::ofstream(kPath) << reference);
    return;
  }
  std::ifstream file(kPath);
  ASSERT_TRUE(file) << "run from the repository's root";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), reference) << "run scripts/update_docs";
  EXPECT_GT(std::count(reference.begin(), reference.end(), '\n'), 80);
}

TEST(MetricsTest, CountersEndInTotalAndStartAtZero) {
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

TEST(MetricsTest, WorkersHaveSeriesWhileConnected) {
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
  a.misses = 2;  // reconnected
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

TEST(MetricsTest, RoundsCountInTheAliases) {
  Registry registry;
  TargetMetrics metrics(registry, "m", 3);
  metrics.CountRound(0, 0, 0);
  metrics.CountRound(0, 7, 2);
  metrics.CountRound(2, 7, 5);  // deeper than the number of positions
  EXPECT_EQ(metrics.rounds.Value(), 3);
  EXPECT_EQ(metrics.drafted_tokens.Value(), 14);
  EXPECT_EQ(metrics.accepted_tokens.Value(), 7);
  EXPECT_EQ(metrics.accepted_at[0]->Value(), 2);
  EXPECT_EQ(metrics.accepted_at[1]->Value(), 2);
  EXPECT_EQ(metrics.accepted_at[2]->Value(), 3);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_verifications_total{verification=\"coupled\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_verifications_total{verification=\"traversal\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 2"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_draft_tokens_total{engine=\"0\","
                              "model_name=\"m\"} 14\n"));
  EXPECT_THAT(text, HasSubstr("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\","
                              "model_name=\"m\",position=\"2\"} 3\n"));
}

TEST(MetricsTest, SchedulingCountsInTheAliases) {
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

TEST(MetricsTest, FabricTotalsAreCopiedAtRender) {
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
  totals.frames_sent = 99;  // not read any more
  EXPECT_THAT(registry.Render(), Not(HasSubstr("99")));
}

// Two fabrics of one process, whose connections may have the same id.
TEST(MetricsTest, FabricsAddUp) {
  FabricCounters sum, more;
  sum.frames_sent = 5;
  sum.addresses = 1;
  sum.peers = {{1, "a:1", "draft", "tcp/lo", 10, 0}};
  sum.slots = {{"free", 3}};
  more.frames_sent = 7;
  more.lookup_failures = 2;
  more.releasing = 4;
  more.peers = {{1, "b:1", "rank", "tcp/lo", 30, 0}};
  more.slots = {{"free", 1}, {"ready", 2}};
  more.registered_bytes = {{"host", 100}};
  Add(more, &sum);
  Registry registry;
  FabricMetrics metrics(registry, [&] { return sum; });
  const std::string text = registry.Render();
  for (const char* line :
       {"specfabric_fabric_frames_total{direction=\"sent\"} 12\n",
        "specfabric_fabric_lookup_failures_total 2\n", "specfabric_fabric_addresses 1\n",
        "specfabric_fabric_releasing_connections 4\n",
        "specfabric_fabric_connections{wire=\"tcp/lo\"} 2\n",
        "specfabric_fabric_slots{state=\"free\"} 4\n",
        "specfabric_fabric_registered_bytes{memory=\"host\"} 100\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr("peer=\"a:1\",role=\"draft\",wire=\"tcp/lo\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("peer=\"b:1\",role=\"rank\",wire=\"tcp/lo\"} 30\n"));
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
                                          &FabricCounters::non_rdma_connections,
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

TEST(MetricsTest, WiresAreShownWhileInUse) {
  Registry registry;
  FabricCounters totals;
  FabricMetrics metrics(registry, [&] { return totals; });
  EXPECT_THAT(registry.Render(), Not(HasSubstr("specfabric_fabric_connections{")));
  const auto connection = [](uint64_t id, const char* wire) {
    return PeerCounters{.connection = id, .peer = "a:1", .role = "draft", .wire = wire};
  };
  const PeerCounters remote = connection(1, "tcp/eth0"), other = connection(2, "tcp/eth0");
  totals.peers = {remote, connection(3, "posix/memory"), other};
  std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"tcp/eth0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"posix/memory\"} 1\n"));
  totals.peers = {remote, other, connection(4, "tcp/eth0")};
  text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"tcp/eth0\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_connections{wire=\"posix/memory\"} 0\n"));
}

TEST(MetricsTest, PeersHaveSeriesWhileConnected) {
  Registry registry;
  FabricCounters totals;
  FabricMetrics metrics(registry, [&] { return totals; });
  PeerCounters peer{.connection = 1, .peer = "a:1", .role = "draft", .wire = "tcp/eth0"};
  const auto line = [](const char* direction, int bytes) {
    return absl::StrCat("specfabric_fabric_peer_bytes_total{direction=\"", direction,
                        "\",peer=\"a:1\",role=\"draft\",wire=\"tcp/eth0\"} ", bytes, "\n");
  };
  peer.bytes_sent = 10;
  peer.bytes_received = 20;
  totals.peers = {peer};
  EXPECT_THAT(registry.Render(),
              AllOf(HasSubstr(line("sent", 10)), HasSubstr(line("received", 20))));
  PeerCounters again = peer;
  again.connection = 2;
  again.bytes_sent = 3;
  again.bytes_received = 0;
  totals.peers = {peer, again};  // the old connection is still open
  EXPECT_THAT(registry.Render(),
              AllOf(HasSubstr(line("sent", 13)), HasSubstr(line("received", 20))));
  again.bytes_sent = 5;
  totals.peers = {again};
  EXPECT_THAT(registry.Render(), HasSubstr(line("sent", 15)));
  totals.peers.clear();
  EXPECT_THAT(registry.Render(), Not(HasSubstr("peer=")));
}

TEST(MetricsTest, RegisteredMemoryAndItsSlotsAreShown) {
  Registry registry;
  FabricCounters totals;
  FabricMetrics metrics(registry, [&] { return totals; });
  totals.registered_bytes = {{"cuda", 0}, {"host", 4096}};
  totals.slots = {{"free", 5}, {"ready", 0}};
  registry.Render();
  totals.slots = {{"free", 4}, {"ready", 1}};
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_registered_bytes{memory=\"cuda\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_registered_bytes{memory=\"host\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_slots{state=\"free\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("specfabric_fabric_slots{state=\"ready\"} 1\n"));
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
