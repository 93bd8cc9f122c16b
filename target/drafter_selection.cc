#include "target/drafter_selection.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "speculation/merge.h"

namespace specfabric::target {

using speculation::DrafterChoice;

namespace {

constexpr int32_t kMaxRewardLevels = 8;  // levels of a tree that a reward counts
constexpr double kStepShare = 0.1;       // of a new step in the smoothed step time
constexpr double kShareRounds = 64;      // rounds over which shares are smoothed
// A drafter that was silent in so many rounds is tried again once in kRetryInterval choices, and
// where all are asked.
constexpr int32_t kMaxUnansweredRounds = 2, kRetryInterval = 64;

bool Any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

}  // namespace

DrafterSelection::DrafterSelection(const speculation::ChoiceOptions& options)
    : options_(options), choice_(options, 0) {}

void DrafterSelection::AddDrafter() {
  const auto before = static_cast<double>(drafters());
  choice_.AddDrafter();
  for (double& share : shares_) share *= before / (before + 1);
  shares_.push_back(1 / (before + 1));
  silence_.emplace_back();
  for (auto& [id, sequence] : sequences_) sequence.choice.AddDrafter();
}

void DrafterSelection::Open(base::SequenceId id, bool teaches) {
  // What is known by now, but its own random numbers.
  DrafterChoice choice = choice_;
  choice.Reseed(base::Mix64(options_.seed ^ base::Mix64(id)));
  sequences_.insert_or_assign(id, Sequence{.choice = std::move(choice), .teaches = teaches});
}

void DrafterSelection::Ended(base::SequenceId id) { sequences_.erase(id); }

// A round without an answer teaches kHedge nothing, since it does not tell what the others would
// have proposed, and a sequence that misses its drafts soon stops asking for them. So silent
// drafters are avoided here.
std::vector<bool> DrafterSelection::Usable(const std::vector<bool>& present) {
  std::vector<bool> usable;
  for (size_t d = 0; d < present.size(); ++d) {
    Silence& silence = silence_[d];
    const bool avoided =
        silence.rounds >= kMaxUnansweredRounds && ++silence.avoided % kRetryInterval != 0;
    usable.push_back(present[d] && !avoided);
  }
  return Any(usable) ? usable : present;
}

std::optional<DrafterSelection::Choice> DrafterSelection::Choose(
    base::SequenceId id, uint32_t round, absl::Span<const base::TokenId> text,
    const std::vector<bool>& present, base::Nanos now) {
  Sequence& sequence = sequences_.at(id);
  Settle(text, &sequence);
  const std::vector<bool> usable = Usable(present);
  if (!Any(usable)) return std::nullopt;
  const DrafterChoice::Round next = sequence.choice.Next(usable);
  for (double& share : shares_) share *= 1 - 1 / kShareRounds;
  shares_[next.drafter] += 1 / kShareRounds;
  // One trial at a time: nothing new is scored before the text of the last trial has come.
  const bool scored = next.score_all && !sequence.trial;
  if (!sequence.trial && drafters() > 1) {
    sequence.trial = Trial{.round = round,
                           .base = static_cast<int32_t>(text.size()),
                           .scored = scored,
                           .asked_at = now,
                           .proposals = std::vector<Trial::Proposal>(drafters())};
    for (size_t d = 0; d < present.size(); ++d) {
      const bool chosen = static_cast<int32_t>(d) == next.drafter;
      sequence.trial->proposals[d].asked = chosen || (scored && present[d]);
    }
    scored_rounds_ += scored;
  }
  return Choice{.drafter = static_cast<uint8_t>(next.drafter), .ask_others = scored};
}

void DrafterSelection::OnTree(uint8_t drafter, base::SequenceId id, uint32_t round,
                              const speculation::TokenTree& tree, int32_t text_size,
                              base::Nanos now) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || !it->second.trial) return;
  Trial& trial = *it->second.trial;
  if (trial.round != round || drafter >= trial.proposals.size()) return;
  // A tree that comes once the text has gone on was of no use, and might only repeat that text.
  if (text_size != trial.base) return;
  Trial::Proposal& proposal = trial.proposals[drafter];
  if (proposal.tree.size() == 0) {
    proposal.tree = tree;
    proposal.latency = now - trial.asked_at;
  }
  silence_[drafter] = {};
}

void DrafterSelection::OnStep(base::Nanos time) {
  const auto now = static_cast<double>(time);
  step_ = step_ == 0 ? now : step_ + kStepShare * (now - step_);
}

double DrafterSelection::Reward(const Trial::Proposal& proposal, int32_t levels) const {
  if (proposal.tree.size() == 0) return 0;
  const double tokens = (1.0 + std::min(levels, kMaxRewardLevels)) / (1 + kMaxRewardLevels);
  const double step = std::max(step_, 1.0);
  return tokens * step / (step + static_cast<double>(proposal.latency));
}

void DrafterSelection::Settle(absl::Span<const base::TokenId> text, Sequence* sequence) {
  if (!sequence->trial) return;
  const Trial& trial = *sequence->trial;
  if (static_cast<int32_t>(text.size()) < trial.base) return sequence->trial.reset();
  const auto after = text.subspan(trial.base);
  // A round that is not scored is over with the next: what was verified of its tree is known.
  const bool last_chance = !trial.scored || static_cast<int32_t>(after.size()) > kMaxRewardLevels;
  std::vector<std::optional<double>> rewards(drafters());
  for (size_t d = 0; d < trial.proposals.size(); ++d) {
    const Trial::Proposal& proposal = trial.proposals[d];
    if (!proposal.asked) continue;
    speculation::Agreement agreement = {.levels = 0, .decided = true};
    if (proposal.tree.size() > 0) agreement = speculation::AgreesWith(proposal.tree, after);
    if (!agreement.decided && !last_chance) return;
    rewards[d] = Reward(proposal, agreement.levels);
  }
  for (size_t d = 0; d < trial.proposals.size(); ++d) {
    silence_[d].rounds += trial.proposals[d].asked && trial.proposals[d].tree.size() == 0;
  }
  for (DrafterChoice* choice : {&choice_, &sequence->choice}) {
    if (choice == &choice_ && !sequence->teaches) continue;
    if (trial.scored) choice->Scored(rewards);
    for (size_t d = 0; d < rewards.size(); ++d) {
      if (rewards[d]) choice->Rewarded(static_cast<int32_t>(d), *rewards[d]);
    }
  }
  sequence->trial.reset();
}

}  // namespace specfabric::target
