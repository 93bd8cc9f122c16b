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
    NoteGoneWithout(*sequence, waited);
    ++counted.draft_misses;
  }
}

void Scheduler::Impl::NoteGoneWithout(const Sequence& sequence, base::Nanos waited) {
  if (!sequence.wait.CaughtUp(sequence.wait.round())) return;
  control.OnGoneWithout(sequence.request.coupling, sequence.wait.order(), waited);
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

  Worths worths, looked_up;  // of those that are ready; of those that wait, so far
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
    if (!sequence->guesses) continue;
    Worths& guesses = wait.waiting() ? looked_up : worths;
    for (float worth : sequence->worth) guesses.Add(value * worth);
  }
  const double ready = apart.rows;
  AddPrefill(PrefillRows(static_cast<int32_t>(apart.rows + together.rows)), &apart);
  together.tokens += apart.tokens;
  together.rows += apart.rows;
  together.context += apart.context;
  together.max_rows = apart.max_rows;

  const StepTime& time = control.step_time();
  const Cut cut_apart = ShareRows(worths, apart, time);
  const double rate_apart = apart.rows == 0 ? 0 : cut_apart.rate;
  if (cohorts && ready > 0) {
    const auto rows = static_cast<int32_t>(apart.rows + cut_apart.guesses);
    const base::Nanos ends = now + time.Predict(rows, apart.context);
    const bool hidden = std::all_of(pending.begin(), pending.end(),
                                    [&](const Pending& p) { return p.expected <= ends; });
    if (hidden) return std::nullopt;
  }
  worths.Add(looked_up, 1);
  const double rate_together = ShareRows(worths, together, time).rate;
  const base::Nanos later = BestDelay(worths, together, std::max(rate_apart, rate_together), now);
  if (later > 0) {
    hold_until = std::min(now + later, deadline);
    return hold_until;
  }
  if (rate_together >= rate_apart) GoWithout(now);
  return std::nullopt;
}

// 0 if no delay of this step yields more than `rate`.
base::Nanos Scheduler::Impl::BestDelay(const Worths& worths, StepBase step, double rate,
                                       base::Nanos now) {
  constexpr base::Nanos kLeast = 20 * base::kMicrosecond;  // not a busy loop
  std::sort(pending.begin(), pending.end(),
            [](const Pending& a, const Pending& b) { return a.expected < b.expected; });
  base::Nanos best = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    step.tokens += pending[i].tokens;
    step.rows += pending[i].rows;
    step.delay = std::max(kLeast, pending[i].expected - now);
    // Those that are expected at about the same time come together.
    if (i + 1 < pending.size() && pending[i + 1].expected - now < step.delay + step.delay / 16) {
      continue;
    }
    const double with = ShareRows(worths, step, control.step_time()).rate;
    if (with <= rate) continue;
    rate = with;
    best = step.delay;
  }
  return best;
}

void Scheduler::Impl::GoWithout(base::Nanos now) {
  for (Sequence* sequence : running) {
    DraftWait& wait = sequence->wait;
    if (!wait.waiting()) continue;
    wait.OnSkipped();
    NoteGoneWithout(*sequence, now - wait.asked_at());
    ++counted.draft_skips;
  }
}

const DraftOrder& Scheduler::Impl::TakeOrder(speculation::Coupling coupling) {
  std::optional<DraftOrder>& order = orders[static_cast<size_t>(coupling)];
  if (!order) {
    int32_t askers = 0;
    StepBase step;
    for (const Sequence* sequence : running) {
      if (sequence->phase != Phase::kRunning) continue;
      step.tokens += 1;
      step.rows += 1;
      step.context += sequence->kv_written;
      askers += sequence->request.coupling == coupling && sequence->request.speculate;
    }
    AddPrefill(PrefillRows(static_cast<int32_t>(step.rows)), &step);
    const DraftOrder all = {.askers = askers};
    order = options.speculation == SpeculationPolicy::kAlways
                ? control.Deepest(coupling, all, options.max_tree_nodes)
                : control.Order(coupling, askers, step, options.max_tree_nodes);
    SetPatience(coupling, &*order);
  }
  const bool probes = order->probers > 0 && order->probers-- > 0;
  const bool explores = !probes && order->explorer >= 0 && order->explorer-- == 0;
  if (!probes && !explores) return *order;
  other_order = probes ? control.Probe(coupling, *order, options.max_tree_nodes, order->probers)
                       : control.Deepest(coupling, *order, options.max_tree_nodes);
  SetPatience(coupling, &other_order);
  return other_order;
}

void Scheduler::Impl::SetPatience(speculation::Coupling coupling, DraftOrder* order) const {
  order->patience = options.speculation == SpeculationPolicy::kAlways
                        ? options.max_draft_wait
                        : std::clamp(control.Patience(coupling, *order), options.min_draft_wait,
                                     options.max_draft_wait);
}

void Scheduler::Impl::StartRound(Sequence* sequence, base::Nanos now, std::vector<Event>* events) {
  const int32_t useful = sequence->useful_draft_nodes(options.max_tree_nodes);
  const speculation::Coupling coupling = sequence->request.coupling;
  LookUp(sequence);
  static const DraftOrder kNone;
  const bool guessed = sequence->request.speculate && useful > 0;
  const DraftOrder& order = guessed ? TakeOrder(coupling) : kNone;
  if (!sequence->wait.StartRound(order, now)) return;
  // In place: a copy would wait until what it is made from has been stored.
  auto& wanted = std::get<DraftWanted>(events->emplace_back(std::in_place_type<DraftWanted>));
  wanted.id = sequence->request.id;
  wanted.round = sequence->wait.round();
  wanted.committed = sequence->committed_size();
  wanted.max_nodes = std::min(order.max_nodes, useful);
  wanted.max_depth = order.max_depth;
  wanted.second_price = order.second_price;
  wanted.row_price = order.row_price;
  wanted.deadline = sequence->wait.deadline();
}

}  // namespace specfabric::scheduler
