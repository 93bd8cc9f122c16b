#include "scheduler/policy/draft_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

bool IsRootedIn(const speculation::Draft& draft, const Sequence& sequence) {
  return draft.tree.size() > 0 && draft.tree.tokens[0] == sequence.committed.back();
}

}  // namespace

void DraftRounds::StartRounds(absl::Span<Sequence* const> sequences,
                              absl::Span<Sequence* const> running, const PrefillLoad& prefill,
                              base::Nanos now, std::vector<Event>* events) {
  orders_.Clear(drafters_);
  // The first order of a round decides how drafters are used: not that of a limited sequence where
  // others ask too.
  bool any_limited = false;
  for (Sequence* sequence : sequences) {
    any_limited |= sequence->limited;
    if (!sequence->limited) StartRound(running, prefill, now, sequence, events);
  }
  if (!any_limited) return;
  for (Sequence* sequence : sequences) {
    if (sequence->limited) StartRound(running, prefill, now, sequence, events);
  }
}

void DraftRounds::StartRound(absl::Span<Sequence* const> running, const PrefillLoad& prefill,
                             base::Nanos now, Sequence* sequence, std::vector<Event>* events) {
  const int32_t useful = sequence->useful_draft_nodes(options_.max_tree_nodes);
  const float found = selection_.Propose(sequence);
  static const DraftOrder kNone;
  const bool asks = Asks(sequence->sources) && useful > 0;
  if (sequence->wait.round() == 0 && sequence->sources.any()) {
    control_->OnNewText(sequence->round_kind(), static_cast<int32_t>(running.size()));
  }
  const DraftOrder& order = asks ? orders_.Take(sequence->round_kind(), running, prefill) : kNone;
  // Where the n-gram lookup has found more than a drafter would, its reply is not waited for.
  if (!sequence->wait.StartRound(found > order.accepted ? kNone : order, now)) return;
  control_->OnAsked();
  // Filled in place: copying a new DraftWanted would stall on the stores that have just made it.
  auto& wanted = std::get<DraftWanted>(events->emplace_back(std::in_place_type<DraftWanted>));
  wanted.id = sequence->request.id;
  wanted.round = sequence->wait.round();
  wanted.committed = sequence->committed_size();
  wanted.max_nodes = std::min(order.max_nodes, useful);
  wanted.max_depth = order.max_depth;
  wanted.cost_per_second = order.cost_per_second;
  wanted.cost_per_row = order.cost_per_row;
  wanted.deadline = sequence->wait.deadline();
  wanted.ahead = order.ahead;
}

void DraftRounds::OnDraft(uint32_t round, speculation::Draft draft, base::Nanos now,
                          Sequence* sequence) {
  if (sequence == nullptr) {  // it has ended
    ++counts_.late;
    control_->OnNoReply();
    return;
  }
  DraftWait& wait = sequence->wait;
  const bool stale =
      sequence->in_flight || sequence->answered || round != wait.round() || !wait.asked();
  if (!stale && !IsRootedIn(draft, *sequence)) {
    wait.OnMiss(now, options_.misses);
    ++counts_.misses;
    return;
  }
  const std::optional<base::Nanos> latency =
      stale ? wait.OnStaleReply(round, now) : wait.OnReply(now);
  counts_.late += stale;
  counts_.hits += !stale;
  if (!latency || draft.tree.size() == 0) return;
  control_->OnAnswered(!stale);
  // Stale replies tell how long replies take as well. A reply before which the drafter had to read
  // more than one round's tokens, above all the prompt, does not.
  if (std::exchange(sequence->had_reply, true) && wait.CaughtUp(round)) {
    control_->OnReply(sequence->round_kind(), wait.order(), draft.tree, *latency);
  }
  if (stale) {
    selection_.LearnFromStale(std::move(draft), *sequence);
  } else {
    selection_.Take(std::move(draft), sequence);
  }
}

void DraftRounds::OnExtraDraft(uint32_t round, speculation::Draft draft, Sequence* sequence) const {
  if (sequence == nullptr || sequence->in_flight || round != sequence->wait.round() ||
      !sequence->wait.asked() || !IsRootedIn(draft, *sequence) ||
      !speculation::Merges(sequence->request.verification)) {
    return;
  }
  selection_.Merge(std::move(draft), sequence);
}

void DraftRounds::SetDrafters(uint32_t connected) {
  if (drafters_ != 0 && connected == 0) control_->OnNoDrafters();
  drafters_ = connected;
}

bool DraftRounds::OnNoDraft(uint32_t round, Sequence* sequence) {
  control_->OnNoReply();
  if (sequence == nullptr || round != sequence->wait.round() || !sequence->wait.waiting()) {
    return false;
  }
  sequence->wait.OnUnavailable();
  ++counts_.misses;
  return true;
}

void DraftRounds::GiveUpLate(absl::Span<Sequence* const> running, base::Nanos now) {
  for (Sequence* sequence : running) {
    DraftWait& wait = sequence->wait;
    if (!wait.waiting() || now < wait.deadline()) continue;
    ++counts_.misses;
    // A drafter that has yet to catch up may be late.
    const bool counts = !wait.order().catches_up;
    RecordSkipped(*sequence, counts ? wait.OnMiss(now, options_.misses) : wait.OnSkipped(now));
  }
}

void DraftRounds::Skip(absl::Span<Sequence* const> running, base::Nanos now) {
  for (Sequence* sequence : running) {
    DraftWait& wait = sequence->wait;
    if (!wait.waiting()) continue;
    RecordSkipped(*sequence, wait.OnSkipped(now));
    ++counts_.skips;
  }
}

void DraftRounds::RecordSkipped(const Sequence& sequence, base::Nanos waited) {
  if (!sequence.wait.CaughtUp(sequence.wait.round())) return;
  control_->OnSkipped(sequence.round_kind(), sequence.wait.order(), waited);
}

}  // namespace specfabric::scheduler
