#ifndef SPECFABRIC_SCHEDULER_SIMULATION_STEP_COST_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_STEP_COST_H_

// How long modelled passes take. Pure; used by the simulator and by benchmarks.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

// A measured pass.
struct PassTime {
  int64_t rows = 0;
  base::Nanos time = 0;
};

// The time of a pass of so many rows, between the measured ones on a straight line; fewer rows than
// the least take its time, more than the most its time a row. `measured`: ascending by rows, not
// empty.
base::Nanos Interpolate(absl::Span<const PassTime> measured, int64_t rows);

// Time of one forward pass. Reading the weights and the arithmetic of the rows overlap, so that the
// longer of them counts: a GPU decodes a few rows in the time of one; a small CPU does not.
struct StepCost {
  base::Nanos fixed = 0;                // launching, planning, collectives
  base::Nanos weights = 0;              // to read the weights once
  double row_ns = 0;                    // to compute a row
  double context_ns = 0;                // to read the KV of one token, for each sequence
  std::vector<PassTime> measured = {};  // if any, in place of `weights` and `row_ns`
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

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_STEP_COST_H_
