#include "scheduler/policy/pacing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "scheduler/policy/step_time.h"

namespace specfabric::scheduler {
namespace {

// Where steps wait for drafts, this part of them may be missing and is left to the comparison: of a
// sequence that has just begun the drafter still reads the prompt.
constexpr double kFewMissing = 0.12;

}  // namespace

StepStart Pacing::Decide(absl::Span<Sequence* const> running, const PrefillLoad& prefill,
                         bool cohorts, base::Nanos now) {
  StepStart start;
  if (AnyWaitsForDraft(running)) {
    if (now < hold_until_) return {.wait_until = hold_until_, .skip_drafts = false};
    if (options_.speculation != SpeculationPolicy::kAlways) {
      // A step that prefill fills hides the wait, or has no rows to spare for draft tokens: whether
      // one pays is left to the comparison.
      const bool filled = 2 * prefill.RowsBeside(0) >= options_.max_step_tokens;
      const base::Nanos must = filled ? 0 : MustWaitUntil(running, now);
      if (must > now) return {.wait_until = must, .skip_drafts = false};
      start = Compare(Survey(running, prefill, now), cohorts, now);
    } else if (!prefill.any()) {
      start.wait_until = EarliestDeadline(running);
    }
  }
  if (!start.wait_until) hold_until_ = 0;
  return start;
}

// How long a step waits for the replies that it must wait for: twice what they usually take, or to
// the deadline of drafters that have yet to catch up. 0: it need not, as most are there.
base::Nanos Pacing::MustWaitUntil(absl::Span<Sequence* const> running, base::Nanos now) {
  base::Nanos until = 0;
  int32_t asked = 0, missing = 0;
  for (const Sequence* sequence : running) {
    const DraftWait& wait = sequence->wait;
    if (sequence->phase != Phase::kRunning || !wait.asked() || !wait.order().must_wait) continue;
    if (!sequence->had_reply && !wait.order().catches_up) continue;  // it reads the prompt
    ++asked;
    if (!wait.waiting()) continue;
    base::Nanos ends = wait.deadline();
    if (!wait.order().catches_up) ends = std::min(ends, wait.asked_at() + 2 * wait.order().latency);
    if (ends <= now) continue;
    ++missing;
    until = until == 0 ? ends : std::min(until, ends);
  }
  return missing > kFewMissing * asked ? until : 0;
}

// A draft that is overdue is expected to take as long again as it is overdue.
Pacing::Candidates Pacing::Survey(absl::Span<Sequence* const> running, const PrefillLoad& prefill,
                                  base::Nanos now) {
  Candidates result;
  auto& [apart, together, gains, while_waiting, deadline, any_ready] = result;
  pending_.clear();
  for (const Sequence* sequence : running) {
    if (sequence->phase != Phase::kRunning) continue;
    const DraftWait& wait = sequence->wait;
    const float value = sequence->Value(now);
    StepBase& part = wait.waiting() ? together : apart;
    part.tokens += value;
    part.rows += 1;
    part.context += sequence->kv_written;
    if (wait.waiting()) {
      const base::Nanos usual = wait.asked_at() + wait.order().latency;
      const base::Nanos overdue = std::max<base::Nanos>(0, now - usual);
      pending_.push_back({usual + 2 * overdue, value * wait.order().gain, wait.order().rows});
      deadline = std::min(deadline, wait.deadline());
    }
    if (!sequence->has_draft) continue;
    GainHistogram& draft_tokens = wait.waiting() ? while_waiting : gains;
    for (float expected_gain : sequence->expected_gain) draft_tokens.Add(value * expected_gain);
  }
  any_ready = apart.rows > 0;
  prefill.AddTo(prefill.RowsBeside(static_cast<int32_t>(apart.rows + together.rows)), &apart);
  together.tokens += apart.tokens;
  together.rows += apart.rows;
  together.context += apart.context;
  together.max_rows = apart.max_rows;
  return result;
}

// The steps that could be taken:
//   apart:    the sequences that are ready, now; the others go on waiting
//   together: all sequences, now; those that wait go without their drafts
//   later:    all sequences, once some of the drafts have come: the first, the first two, ...
// The one of the most tokens a nanosecond is taken. The exception: of two cohorts one goes on apart
// if the drafts of the other are expected during its step, which is what makes cohorts pay.
StepStart Pacing::Compare(const Candidates& candidates, bool cohorts, base::Nanos now) {
  const auto& [apart, together, gains, while_waiting, deadline, any_ready] = candidates;
  const StepTime& time = control_.step_time();
  const RowAllocation allocation_apart = AllocateRows(gains, apart, time);
  const double rate_apart = apart.rows == 0 ? 0 : allocation_apart.rate;
  if (cohorts && any_ready) {
    const auto rows = static_cast<int32_t>(apart.rows + allocation_apart.draft_tokens);
    const base::Nanos ends = now + time.Predict(rows, apart.context);
    const bool hidden = std::all_of(pending_.begin(), pending_.end(),
                                    [&](const Pending& p) { return p.expected <= ends; });
    if (hidden) return {};
  }
  GainHistogram all_gains = gains;
  all_gains.Add(while_waiting, 1);
  const double rate_together = AllocateRows(all_gains, together, time).rate;
  const base::Nanos delay =
      BestDelay(all_gains, together, std::max(rate_apart, rate_together), now);
  if (delay > 0) {
    hold_until_ = std::min(now + delay, deadline);
    return {.wait_until = hold_until_, .skip_drafts = false};
  }
  return {.wait_until = {}, .skip_drafts = rate_together >= rate_apart};
}

base::Nanos Pacing::BestDelay(const GainHistogram& gains, StepBase step, double rate,
                              base::Nanos now) {
  constexpr base::Nanos kMinDelay = 20 * base::kMicrosecond;  // not a busy loop
  std::sort(pending_.begin(), pending_.end(),
            [](const Pending& a, const Pending& b) { return a.expected < b.expected; });
  base::Nanos best = 0;
  for (size_t i = 0; i < pending_.size(); ++i) {
    step.tokens += pending_[i].tokens;
    step.rows += pending_[i].rows;
    step.delay = std::max(kMinDelay, pending_[i].expected - now);
    // Those that are expected at about the same time come together.
    if (i + 1 < pending_.size() && pending_[i + 1].expected - now < step.delay + step.delay / 16) {
      continue;
    }
    const double with = AllocateRows(gains, step, control_.step_time()).rate;
    if (with <= rate) continue;
    rate = with;
    best = step.delay;
  }
  return best;
}

}  // namespace specfabric::scheduler
