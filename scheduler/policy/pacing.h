#ifndef SPECFABRIC_SCHEDULER_POLICY_PACING_H_
#define SPECFABRIC_SCHEDULER_POLICY_PACING_H_

// When a step starts: whether it waits for drafts that are on their way. Compares the steps that
// could be taken by the expected tokens a nanosecond. Owns the decision that it made last, which
// holds until its time is over. Called by Scheduler::Plan; it reads the sequences and changes none.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/policy/tree_budget.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

struct StepStart {
  // The step starts no earlier, unless something happens before; none: it starts now.
  std::optional<base::Nanos> wait_until;
  // It starts now, and takes the sequences that wait for a draft without it.
  bool skip_drafts = false;
};

class Pacing {
 public:
  // Both must outlive it.
  Pacing(const SchedulerOptions& options, const GoodputControl& control)
      : options_(options), control_(control) {}

  // cohorts: see Cohorts::active.
  StepStart Decide(absl::Span<Sequence* const> running, const PrefillLoad& prefill, bool cohorts,
                   base::Nanos now);
  // A draft that was waited for will not come: the next Decide decides anew.
  void Reconsider() { hold_until_ = 0; }

 private:
  struct Pending {
    base::Nanos expected = 0;     // when the draft is expected
    double tokens = 0, rows = 0;  // that it adds to a step
  };
  // The steps that could start, without their draft tokens.
  struct Candidates {
    StepBase apart, together;
    GainHistogram gains;          // draft tokens of the sequences that are ready
    GainHistogram while_waiting;  // draft tokens (the n-gram lookup's) that waiting sequences have
    base::Nanos deadline = base::kForever;  // the first of those that wait
    bool any_ready = false;
  };

  static base::Nanos MustWaitUntil(absl::Span<Sequence* const> running, base::Nanos now);
  StepStart Compare(const Candidates& candidates, bool cohorts, base::Nanos now);
  Candidates Survey(absl::Span<Sequence* const> running, const PrefillLoad& prefill,
                    base::Nanos now);
  // The delay of this step that yields the most, 0 if none yields more than `rate`.
  base::Nanos BestDelay(const GainHistogram& gains, StepBase step, double rate, base::Nanos now);

  const SchedulerOptions& options_;
  const GoodputControl& control_;
  base::Nanos hold_until_ = 0;    // as last decided; 0: decide anew
  std::vector<Pending> pending_;  // scratch of Decide, kept for its memory
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_PACING_H_
