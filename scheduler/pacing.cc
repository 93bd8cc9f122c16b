// When a step starts: what is asked of drafts, and whether to wait for it.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace specfabric::scheduler {

void Scheduler::Impl::GiveUpLateDrafts(base::Nanos now) {
  for (Sequence* sequence : running) {
    DraftWait& wait = sequence->wait;
    if (!wait.waiting() || now < wait.deadline()) continue;
    const base::Nanos waited = wait.OnMiss(now, options.misses);
    RecordSkipped(*sequence, waited);
    ++counted.draft_misses;
  }
}

void Scheduler::Impl::RecordSkipped(const Sequence& sequence, base::Nanos waited) {
  if (!sequence.wait.CaughtUp(sequence.wait.round())) return;
  control.OnSkipped(sequence.request.verification, sequence.wait.order(), waited);
}

base::Nanos Scheduler::Impl::EarliestDeadline() const {
  base::Nanos earliest = base::kForever;
  for (const Sequence* sequence : running) {
    if (sequence->wait.waiting()) earliest = std::min(earliest, sequence->wait.deadline());
  }
  return earliest;
}

bool Scheduler::Impl::AnyWaiting() const {
  return std::any_of(running.begin(), running.end(),
                     [](const Sequence* sequence) { return sequence->wait.waiting(); });
}

// What may happen now, as steps that could start:
//   apart:    those that are ready, at once; the others go on waiting
//   together: all at once, those that wait without their drafts
//   later:    all, once some of the drafts have come: the first, the first two, ...
// The one of the most tokens a nanosecond wins; but of two cohorts one goes on apart while the
// drafts of the other are expected during its step, which is what makes cohorts pay. An overdue
// draft is expected to take as long again as it is overdue.
std::optional<base::Nanos> Scheduler::Impl::HoldUntil(base::Nanos now) {
  if (!AnyWaiting()) return std::nullopt;
  if (now < hold_until) return hold_until;
  if (options.speculation == SpeculationPolicy::kAlways) {
    if (PrefillRows(0) > 0) return std::nullopt;
    return EarliestDeadline();
  }

  GainHistogram gains, while_waiting;  // of those that are ready; of those that wait, so far
  StepBase apart, together;
  base::Nanos deadline = base::kForever;
  pending.clear();
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
      pending.push_back({usual + 2 * overdue, value * wait.order().gain, wait.order().rows});
      deadline = std::min(deadline, wait.deadline());
    }
    if (!sequence->has_draft) continue;
    GainHistogram& draft_tokens = wait.waiting() ? while_waiting : gains;
    for (float expected_gain : sequence->expected_gain) draft_tokens.Add(value * expected_gain);
  }
  const double ready = apart.rows;
  AddPrefill(PrefillRows(static_cast<int32_t>(apart.rows + together.rows)), &apart);
  together.tokens += apart.tokens;
  together.rows += apart.rows;
  together.context += apart.context;
  together.max_rows = apart.max_rows;

  const StepTime& time = control.step_time();
  const RowAllocation allocation_apart = AllocateRows(gains, apart, time);
  const double rate_apart = apart.rows == 0 ? 0 : allocation_apart.rate;
  if (cohorts && ready > 0) {
    const auto rows = static_cast<int32_t>(apart.rows + allocation_apart.draft_tokens);
    const base::Nanos ends = now + time.Predict(rows, apart.context);
    const bool hidden = std::all_of(pending.begin(), pending.end(),
                                    [&](const Pending& p) { return p.expected <= ends; });
    if (hidden) return std::nullopt;
  }
  gains.Add(while_waiting, 1);
  const double rate_together = AllocateRows(gains, together, time).rate;
  const base::Nanos later = BestDelay(gains, together, std::max(rate_apart, rate_together), now);
  if (later > 0) {
    hold_until = std::min(now + later, deadline);
    return hold_until;
  }
  if (rate_together >= rate_apart) SkipDrafts(now);
  return std::nullopt;
}

// 0 if no delay of this step yields more than `rate`.
base::Nanos Scheduler::Impl::BestDelay(const GainHistogram& gains, StepBase step, double rate,
                                       base::Nanos now) {
  constexpr base::Nanos kMinDelay = 20 * base::kMicrosecond;  // not a busy loop
  std::sort(pending.begin(), pending.end(),
            [](const Pending& a, const Pending& b) { return a.expected < b.expected; });
  base::Nanos best = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    step.tokens += pending[i].tokens;
    step.rows += pending[i].rows;
    step.delay = std::max(kMinDelay, pending[i].expected - now);
    // Those that are expected at about the same time come together.
    if (i + 1 < pending.size() && pending[i + 1].expected - now < step.delay + step.delay / 16) {
      continue;
    }
    const double with = AllocateRows(gains, step, control.step_time()).rate;
    if (with <= rate) continue;
    rate = with;
    best = step.delay;
  }
  return best;
}

void Scheduler::Impl::SkipDrafts(base::Nanos now) {
  for (Sequence* sequence : running) {
    DraftWait& wait = sequence->wait;
    if (!wait.waiting()) continue;
    wait.OnSkipped();
    RecordSkipped(*sequence, now - wait.asked_at());
    ++counted.draft_skips;
  }
}

const DraftOrder& Scheduler::Impl::TakeOrder(speculation::VerificationMethod verification) {
  std::optional<DraftOrder>& order = orders[static_cast<size_t>(verification)];
  if (!order) {
    int32_t askers = 0;
    StepBase step;
    for (const Sequence* sequence : running) {
      if (sequence->phase != Phase::kRunning) continue;
      step.tokens += 1;
      step.rows += 1;
      step.context += sequence->kv_written;
      askers += sequence->request.verification == verification && sequence->request.speculate;
    }
    AddPrefill(PrefillRows(static_cast<int32_t>(step.rows)), &step);
    const DraftOrder all = {.askers = askers};
    order = options.speculation == SpeculationPolicy::kAlways
                ? control.Deepest(verification, all, options.max_tree_nodes)
                : control.Order(verification, askers, step, options.max_tree_nodes);
    SetReplyTimeout(verification, &*order);
  }
  const bool probes = order->probers > 0 && order->probers-- > 0;
  const bool explores = !probes && order->explorer >= 0 && order->explorer-- == 0;
  if (!probes && !explores) return *order;
  other_order = probes ? control.Probe(verification, *order, options.max_tree_nodes, order->probers)
                       : control.Deepest(verification, *order, options.max_tree_nodes);
  SetReplyTimeout(verification, &other_order);
  return other_order;
}

void Scheduler::Impl::SetReplyTimeout(speculation::VerificationMethod verification,
                                      DraftOrder* order) const {
  order->reply_timeout = options.speculation == SpeculationPolicy::kAlways
                             ? options.max_draft_wait
                             : std::clamp(control.ReplyTimeout(verification, *order),
                                          options.min_draft_wait, options.max_draft_wait);
}

void Scheduler::Impl::StartRound(Sequence* sequence, base::Nanos now, std::vector<Event>* events) {
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  const speculation::VerificationMethod verification = sequence->request.verification;
  ProposeFromNgramLookup(sequence);
  static const DraftOrder kNone;
  const bool speculates = sequence->request.speculate && useful > 0;
  const DraftOrder& order = speculates ? TakeOrder(verification) : kNone;
  if (!sequence->wait.StartRound(order, now)) return;
  // In place: a copy would wait until what it is made from has been stored.
  auto& wanted = std::get<DraftWanted>(events->emplace_back(std::in_place_type<DraftWanted>));
  wanted.id = sequence->request.id;
  wanted.round = sequence->wait.round();
  wanted.committed = sequence->committed_size();
  wanted.max_nodes = std::min(order.max_nodes, useful);
  wanted.max_depth = order.max_depth;
  wanted.cost_per_second = order.cost_per_second;
  wanted.cost_per_row = order.cost_per_row;
  wanted.deadline = sequence->wait.deadline();
}

}  // namespace specfabric::scheduler
