#ifndef SPECFABRIC_SCHEDULER_STEP_PROFILE_H_
#define SPECFABRIC_SCHEDULER_STEP_PROFILE_H_

// Steps that a group runs before it serves, to measure what a step of so many rows takes
// (SchedulerOptions::profile). Without it the sizes that no step has had yet would have to be
// tried on requests. Pure.

#include <cstdint>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

// Rows of the steps to measure, ascending: where StepTime has its knots, as far as verification
// can need them and the KV blocks suffice.
std::vector<int32_t> ProfileSizes(const SchedulerOptions& options);

// A step of so many rows, one of ProfileSizes: trees without branches, as few as there can be with
// at most kProfileTree rows each, but no more than sequences can run. Their texts are arbitrary,
// their blocks the first of the pool, of which no sequence may have any yet. number: of the step.
constexpr int32_t kProfileTree = 8;
StepPlan ProfileStep(const SchedulerOptions& options, int32_t rows, uint64_t number);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_STEP_PROFILE_H_
