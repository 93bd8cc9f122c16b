// Goodput control against an oracle: the best of many fixed trees, each always requested, waited
// for and verified whole, found by running all of them; and against no drafts. By default at some
// points of the grid; SPECFABRIC_ORACLE_FULL=1 runs all of it and prints the results.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/simulation/simulator.h"

namespace specfabric::scheduler {
namespace {

using base::kMicrosecond;

constexpr int32_t kPrompt = 16;

struct Point {
  double acceptance = 0;
  int32_t clients = 0;           // concurrent requests
  base::Nanos draft_level = 0;   // a draft worker's pass
  double acceptance_after = -1;  // in the second half of every text; negative: the same
  int32_t output = 800;
};

// GPU-like: reading the weights takes as long as the arithmetic of 333 rows.
SimulationOptions OptionsAt(const Point& point) {
  SimulationOptions options;
  SchedulerOptions& s = options.scheduler;
  s.max_sequences = 512;
  s.max_context = 4096;
  s.max_step_tokens = 2048;
  s.kv_blocks = point.clients * (kPrompt + point.output) / s.block_size + 2 * point.clients;
  options.step = {.fixed = 300 * kMicrosecond,
                  .weights = 20'000 * kMicrosecond,
                  .row_ns = 60'000,
                  .context_ns = 20};
  options.draft.round_trip = 20 * kMicrosecond;
  options.draft.weights = point.draft_level;
  options.draft.row_ns = 5'000;
  options.drafts = 4;
  options.draft_sessions = 1000;
  options.acceptance.first = point.acceptance;
  options.acceptance.spread = 0.2;
  if (point.acceptance_after >= 0) {
    options.acceptance.shift_position = kPrompt + point.output / 2;
    options.acceptance.first_after = point.acceptance_after;
  }
  return options;
}

double TokensPerSecond(SimulationOptions options, const Point& point, const std::string& tree) {
  options.draft.tree = speculation::GrowthPolicy::Parse(tree).value();
  std::vector<Arrival> arrivals;
  for (int i = 0; i < point.clients; ++i) arrivals.push_back({0, kPrompt, point.output + i % 7});
  return Simulate(options, arrivals).tokens_per_second;
}

struct Outcome {
  double plain = 0, best = 0, ours = 0;
  std::string tree = "none";  // the best
};

Outcome RunAt(const Point& point) {
  SimulationOptions fixed = OptionsAt(point);
  fixed.scheduler.speculation = SpeculationPolicy::kAlways;
  SimulationOptions none = fixed;
  none.drafts = 0;
  Outcome outcome;
  outcome.plain = outcome.best = TokensPerSecond(none, point, "1");
  for (const char* tree : {"1", "2", "1,1", "2,1", "1,1,1", "2,2,1", "1,1,1,1", "2,2,1,1",
                           "1,1,1,1,1,1", "1,1,1,1,1,1,1,1", "1,1,1,1,1,1,1,1,1,1,1,1",
                           "best:4:2:2", "best:8:4:4", "best:16:4:8", "best:32:4:12"}) {
    const double rate = TokensPerSecond(fixed, point, tree);
    if (rate <= outcome.best) continue;
    outcome.best = rate;
    outcome.tree = tree;
  }
  outcome.ours = TokensPerSecond(OptionsAt(point), point, "best:32:4:12");
  return outcome;
}

std::vector<Point> Points() {
  if (std::getenv("SPECFABRIC_ORACLE_FULL") == nullptr) {
    return {{.3, 1, 300 * kMicrosecond},      {.7, 8, 1500 * kMicrosecond},
            {.9, 64, 1500 * kMicrosecond},    {.5, 256, 300 * kMicrosecond, -1, 300},
            {.3, 32, 1500 * kMicrosecond},    {.3, 16, 1500 * kMicrosecond, .9},
            {.9, 16, 300 * kMicrosecond, .3}, {.7, 256, 1500 * kMicrosecond, -1, 500}};
  }
  std::vector<Point> points;
  for (int32_t clients : {1, 4, 16, 64, 128, 256, 512}) {
    for (base::Nanos level : {300 * kMicrosecond, 1500 * kMicrosecond}) {
      for (double acceptance : {.3, .5, .7, .9}) points.push_back({acceptance, clients, level});
      points.push_back({.3, clients, level, .9});
      points.push_back({.9, clients, level, .3});
    }
  }
  return points;
}

TEST(OracleTest, NearlyAsGoodAsTheBestFixedTreeAndNoWorseThanNone) {
  std::printf("%10s %6s %9s %9s %9s %-18s %9s %7s %7s\n", "accepted", "at once", "level, us",
              "plain", "best", "by the tree", "ours", "/best", "/plain");
  for (const Point& point : Points()) {
    const Outcome o = RunAt(point);
    char accepted[16];
    std::snprintf(accepted, sizeof(accepted), point.acceptance_after < 0 ? "%.1f" : "%.1f, %.1f",
                  point.acceptance, point.acceptance_after);
    std::printf("%10s %6d %9.0f %9.0f %9.0f %-18s %9.0f %7.3f %7.3f\n", accepted, point.clients,
                1e-3 * static_cast<double>(point.draft_level), o.plain, o.best, o.tree.c_str(),
                o.ours, o.ours / o.best, o.ours / o.plain);
    EXPECT_GE(o.ours, 0.95 * o.best);
    EXPECT_GE(o.ours, 0.98 * o.plain);
  }
}

// On a shared machine a step says less about the next, and measurements are soon out of date.
TEST(OracleTest, VaryingStepTimesCostLittle) {
  std::printf("%10s %6s %9s %9s %7s\n", "accepted", "at once", "plain", "ours", "/plain");
  for (int32_t clients : {4, 64, 256}) {
    for (double acceptance : {.3, .7}) {
      const Point point = {acceptance, clients, 1500 * kMicrosecond, -1, 300};
      SimulationOptions options = OptionsAt(point);
      options.noise.drift = 1.2;
      options.noise.jitter = 1.1;
      SimulationOptions none = options;
      none.drafts = 0;
      const double plain = TokensPerSecond(none, point, "1");
      const double ours = TokensPerSecond(options, point, "best:32:4:12");
      std::printf("%10.1f %6d %9.0f %9.0f %7.3f\n", acceptance, clients, plain, ours, ours / plain);
      EXPECT_GE(ours, 0.98 * plain);
    }
  }
}

}  // namespace
}  // namespace specfabric::scheduler
