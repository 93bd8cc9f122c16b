#include "scheduler/policy/cohorts.h"

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace specfabric::scheduler {
namespace {

// Whether verifying one half of `step` at a time pays. `ready` is one cohort or both: their
// drafters are taken to reply to the others in the same time.
bool HalvesPay(absl::Span<Sequence* const> ready, const GainHistogram& gains, const StepBase& step,
               const StepTime& time) {
  constexpr double kMinSpeedup = 1.03;
  base::Nanos reply = 0;
  for (const Sequence* sequence : ready) {
    if (!sequence->answered) return false;
    reply = std::max(reply, sequence->wait.order().latency);
  }
  StepBase whole = step;
  whole.delay = reply;
  GainHistogram of_half;
  of_half.Add(gains, 0.5);
  StepBase half = {.tokens = step.tokens / 2,
                   .rows = step.rows / 2,
                   .context = step.context / 2,
                   .delay = 0,
                   .max_rows = step.max_rows};
  const RowAllocation allocation = AllocateRows(of_half, half, time);
  const auto rows = static_cast<int32_t>(half.rows + allocation.draft_tokens);
  half.delay = std::max<base::Nanos>(0, (reply - time.Predict(rows, half.context)) / 2);
  return AllocateRows(of_half, half, time).rate >
         kMinSpeedup * AllocateRows(gains, whole, time).rate;
}

}  // namespace

bool Cohorts::LeavesHalf(absl::Span<Sequence* const> ready, absl::Span<Sequence* const> running,
                         const PrefillLoad& prefill, const GainHistogram& gains,
                         const StepBase& step, const StepTime& time) {
  if (ready.empty() || prefill.any()) return active_ = false;
  if (!active_ || !AnyWaitsForDraft(running)) {
    active_ = ready.size() > 1 && HalvesPay(ready, gains, step, time);
    return active_;
  }
  // The other cohort waits for its drafts, and is taken to be as large.
  GainHistogram of_both;
  of_both.Add(gains, 2);
  StepBase both = step;
  both.tokens *= 2;
  both.rows *= 2;
  both.context *= 2;
  active_ = HalvesPay(ready, of_both, both, time);
  return false;
}

}  // namespace specfabric::scheduler
