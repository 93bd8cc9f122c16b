#ifndef SPECFABRIC_TARGET_MEASURE_STEPS_H_
#define SPECFABRIC_TARGET_MEASURE_STEPS_H_

// Measures what steps take on the group's idle devices, by their rows, before it serves. A pure
// function of what it is given but for the clock.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "target/target_engine.h"

namespace specfabric::target {

// Runs steps of more and more rows, each some times, of which the least counts: the first maps
// memory and captures graphs. Powers of two come first, so that what is known when `budget` ends
// spans few rows and many, then the sizes between them. Ends at the size from which on a row takes
// what it takes in larger steps too, or after `budget`. Returned by rows, ascending. options: the
// scheduler's, whose blocks nothing uses yet. Errors: a step's.
absl::StatusOr<std::vector<scheduler::StepSample>> MeasureSteps(
    const scheduler::SchedulerOptions& options, const ExecuteStep& execute, base::Nanos budget);

// A line for the log: what steps of some sizes take.
std::string Describe(absl::Span<const scheduler::StepSample> profile);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_MEASURE_STEPS_H_
