#ifndef SPECFABRIC_SCHEDULER_SIMULATION_SIMULATOR_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_SIMULATOR_H_

// Capacity simulator: the real scheduler and draft router, with everything around them modelled
// (the time of a target's steps, draft workers with queues, how often draft tokens are accepted).
// It answers how many drafts a number of targets needs, and what latency results. Each target has a
// scheduler and a router of its own; the targets share the drafts. Pure and deterministic; one
// thread.

#include <cstdint>
#include <vector>

#include "scheduler/routing/draft_router.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/arrivals.h"
#include "scheduler/simulation/draft_place.h"
#include "scheduler/simulation/modelled_draft.h"
#include "scheduler/simulation/modelled_states.h"
#include "scheduler/simulation/modelled_text.h"
#include "scheduler/simulation/step_cost.h"

namespace specfabric::scheduler {

struct SimulationOptions {
  SchedulerOptions scheduler;  // of each target; the vocabulary is the simulator's own
  DraftRouterOptions router;   // of each target, except the salt
  StepCost step;
  StepNoise noise;
  DraftCost draft;
  // Of a drafter that reads hidden states; a link a target.
  StateCost states;
  DraftPlace place = DraftPlace::kApart;  // of others, `drafts` is 0 or `targets`
  // kShared: the part of its speed that a pass has while the other process runs one too.
  double target_speed = 0.5, draft_speed = 0.5;
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
  // Time between two steps of a target that has sequences, mean over the steps: it waits for
  // drafts, or its device drafts. What is drafted while it runs a step is not in it.
  double exposed_draft = 0;
  int64_t states_sent = 0, state_bytes = 0;  // hidden states: tokens, and what they take
  uint64_t draft_hits = 0, draft_misses = 0, draft_skips = 0;
  uint64_t draft_moves = 0;  // of sequences to a better worker
};

// arrivals: ascending in time.
SimulationReport Simulate(const SimulationOptions& options, const std::vector<Arrival>& arrivals);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_SIMULATOR_H_
