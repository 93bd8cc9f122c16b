#ifndef SPECFABRIC_SCHEDULER_SIMULATOR_H_
#define SPECFABRIC_SCHEDULER_SIMULATOR_H_

// The scheduler and the draft router as they serve, with everything around them modelled: the time
// of a target's steps, draft workers with queues, and how often they guess right. What an operator
// asks before buying machines: how many drafts a target wants, and what that does to latency. Pure
// and deterministic; one thread.
//
// The modelled text of a sequence is a function of (seed, sequence, position). At every position
// the draft's guesses are ranked; with some chance the first is right, and each further one has a
// share of what is left. That chance varies from position to position, and the draft knows it: it
// is the score of its guesses.

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "scheduler/draft_router.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_plan.h"
#include "speculation/growth.h"

namespace specfabric::scheduler {

// Of one forward pass: reading the weights once and the arithmetic of the rows overlap, so that the
// longer of them counts. A GPU decodes a few rows in the time of one; a small CPU does not.
struct StepCost {
  base::Nanos fixed = 0;    // launching, planning, collectives
  base::Nanos weights = 0;  // to read them once
  double row_ns = 0;        // to compute a row
  double context_ns = 0;    // to read the KV of one token, for each sequence
  base::Nanos Of(const StepPlan& plan) const;
};

struct DraftCost {
  base::Nanos round_trip = 0;  // of the network
  base::Nanos weights = 0;     // of one pass (a level of all trees that a worker grows, or prefill)
  double row_ns = 0;
  speculation::GrowthPolicy tree;
};

struct Acceptance {
  double first = 0.7;    // mean chance of the first guess, if its parent was right
  double further = 0.4;  // share of what is left that each further sibling takes
  double spread = 0.25;  // the chance of the first is uniform in [first - spread, first + spread],
                         // kept within [.01, .99]
  // From this position of a text on, the first guess's mean chance is another.
  int32_t shift_position = std::numeric_limits<int32_t>::max();
  double first_after = 0;
};

struct Arrival {
  base::Nanos time = 0;
  int32_t prompt = 0;  // tokens
  int32_t output = 0;
};

struct SimulationOptions {
  SchedulerOptions scheduler;  // the vocabulary is the simulator's own
  DraftRouterOptions router;
  StepCost step;
  DraftCost draft;
  int32_t drafts = 0;  // workers; 0: none is asked
  int32_t draft_sessions = 64;
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
  Percentiles tpot;  // mean time a token after the first, by request
  double accepted_per_round = 0;
  double target_busy = 0;  // share of the duration
  double drafts_busy = 0;  // mean over the workers
  uint64_t draft_hits = 0, draft_misses = 0, draft_skips = 0;
};

// arrivals: ascending in time.
SimulationReport Simulate(const SimulationOptions& options, const std::vector<Arrival>& arrivals);

// `count` arrivals at exponential intervals. Lengths are uniform in [mean / 2, 3 mean / 2].
std::vector<Arrival> PoissonArrivals(int32_t count, double per_second, int32_t mean_prompt,
                                     int32_t mean_output, uint64_t seed);

// Lines of "seconds,prompt tokens,output tokens", after a heading if there is one. InvalidArgument
// names the line.
absl::StatusOr<std::vector<Arrival>> ParseArrivals(std::string_view csv);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATOR_H_
