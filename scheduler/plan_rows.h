#ifndef SPECFABRIC_SCHEDULER_PLAN_ROWS_H_
#define SPECFABRIC_SCHEDULER_PLAN_ROWS_H_

// Writes one sequence's part of a step into the plan: its rows, its KV blocks and the rows whose
// logits are wanted. Called by StepPlanner, which decides how many rows and which draft tokens.
// `planned` and `planned_rows` of the sequence then say what is in the plan.

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

// Appends the next `rows` tokens of the sequence's prompt (or resumed output) to the plan.
void PlanPrefill(int32_t rows, int32_t block_size, Sequence* sequence, StepPlan* plan);

// Appends the last committed token and `nodes` (as speculation::Keep) of its draft, which it must
// have if there are any, and the slot moves that its last round left.
void PlanTree(absl::Span<const int32_t> nodes, int32_t block_size, Sequence* sequence,
              StepPlan* plan);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_PLAN_ROWS_H_
