#ifndef SPECFABRIC_SCHEDULER_APPLY_RESULT_H_
#define SPECFABRIC_SCHEDULER_APPLY_RESULT_H_

// What the result of a step does to one sequence. Called by StepInFlight.

#include <cstdint>

#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

// Appends the result's tokens to the sequence, cut at the first stop id or at the limit, and notes
// the slot moves that make the accepted path a plain prefix. `event`, a new one,
// is then complete; its `finish` says whether the sequence goes on. Its tokens are the result's,
// which has the memory of the event's in their place: a copy is what takes longest with a thousand
// sequences. A result that does not fit what was planned is a programming error (CHECK).
void ApplyResult(int32_t block_size, Sequence* sequence, SequenceResult* result,
                 TokensEvent* event);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_APPLY_RESULT_H_
