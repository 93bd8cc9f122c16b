#ifndef SPECFABRIC_SCHEDULER_POLICY_COHORTS_H_
#define SPECFABRIC_SCHEDULER_POLICY_COHORTS_H_

// Whether the running sequences take turns in two cohorts: one is verified while the drafts of the
// other are on their way. A round of both then takes max(2 half steps, half step + reply); all
// together take step + reply. Where reading the weights bounds a step two cohorts never pay, where
// arithmetic does they often do. Owned by StepPlanner, which decides with every step.

#include "absl/types/span.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/policy/tree_budget.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

class Cohorts {
 public:
  // As decided with the last step.
  bool active() const { return active_; }
  // Whether one half of `ready` (sequences that could be verified now) is left for the next step.
  // gains, step: of all of `ready`. running: all sequences that run.
  bool LeavesHalf(absl::Span<Sequence* const> ready, absl::Span<Sequence* const> running,
                  const PrefillLoad& prefill, const GainHistogram& gains, const StepBase& step,
                  const StepTime& time);

 private:
  bool active_ = false;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_COHORTS_H_
