#ifndef SPECFABRIC_SCHEDULER_SIMULATION_SIMULATOR_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_SIMULATOR_H_

// Capacity simulator: the real scheduler and draft router, with everything around them modelled
// (the time of a target's steps, draft workers with queues, how often draft tokens are accepted).
// It answers how many drafts a number of targets needs, and what latency results. Each target has a
// scheduler and a router of its own; the targets share the drafts. Pure and deterministic; one
// thread.

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "scheduler/routing/draft_router.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/modelled_draft.h"
#include "scheduler/simulation/modelled_text.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

// Time of one forward pass. Reading the weights and the arithmetic of the rows overlap, so that the
// longer of them counts: a GPU decodes a few rows in the time of one; a small CPU does not.
struct StepCost {
  base::Nanos fixed = 0;    // launching, planning, collectives
  base::Nanos weights = 0;  // to read the weights once
  double row_ns = 0;        // to compute a row
  double context_ns = 0;    // to read the KV of one token, for each sequence
  base::Nanos Of(const StepPlan& plan) const;
};

// Noise of a shared machine. The time of a step is multiplied by a slow factor in
// [1 / drift, drift], interpolated between one value a period, and by a factor of its own in
// [1 / jitter, jitter].
struct StepNoise {
  double drift = 1, jitter = 1;
  base::Nanos period = 2 * base::kSecond;
  // For a step that begins at `now`.
  double Factor(base::Nanos now, uint64_t seed) const;
};

struct Arrival {
  base::Nanos time = 0;
  int32_t prompt = 0;  // tokens
  int32_t output = 0;
};

struct SimulationOptions {
  SchedulerOptions scheduler;  // of each target; the vocabulary is the simulator's own
  DraftRouterOptions router;   // of each target, except the salt
  StepCost step;
  StepNoise noise;
  DraftCost draft;
  int32_t targets = 1;          // an arrival goes to the one with the fewest sequences
  int32_t drafts = 0;           // workers, shared by all targets; 0: no speculation
  int32_t draft_sessions = 64;  // of each worker; more are refused (busy)
  Acceptance acceptance;
  uint64_t seed = 1;
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

// Times in seconds.
struct SimulationReport {
  int32_t requests = 0, refused = 0;
  int64_t output_tokens = 0;
  double duration = 0;  // from the first arrival to the last token
  double tokens_per_second = 0;
  Percentiles ttft;  // arrival to first token
  Percentiles tpot;  // mean time per token after the first, of each request
  double accepted_per_round = 0;
  double target_busy = 0;  // share of the duration, mean over the targets
  double drafts_busy = 0;  // the same, mean over the workers
  uint64_t draft_hits = 0, draft_misses = 0, draft_skips = 0;
  uint64_t draft_moves = 0;  // of sequences to a better worker
};

// arrivals: ascending in time.
SimulationReport Simulate(const SimulationOptions& options, const std::vector<Arrival>& arrivals);

// `count` arrivals at exponential intervals. Lengths are uniform in [mean / 2, 3 mean / 2].
std::vector<Arrival> PoissonArrivals(int32_t count, double per_second, int32_t mean_prompt,
                                     int32_t mean_output, uint64_t seed);

// Lines of "seconds,prompt tokens,output tokens"; the first may be a header. InvalidArgument names
// the line.
absl::StatusOr<std::vector<Arrival>> ParseArrivals(std::string_view csv);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_SIMULATOR_H_
