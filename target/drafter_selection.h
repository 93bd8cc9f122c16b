#ifndef SPECFABRIC_TARGET_DRAFTER_SELECTION_H_
#define SPECFABRIC_TARGET_DRAFTER_SELECTION_H_

// Chooses, for each sequence and round, the drafter whose tree is verified, and learns from how the
// trees agreed with the text (speculation/drafter_choice.h).
//
// A sequence starts with a copy of what was learned from all sequences before it and then learns
// its own, because the best drafter differs between texts. Some rounds are scored: all drafters are
// asked, each tree is compared with the text that follows, and where the verification method
// Merges, all of them are verified together. In the other rounds only the chosen drafter is asked.
// With one drafter no round is scored.
//
// The reward of a round: (1 + L) / 9 * step / (step + latency), L the levels of the tree that agree
// with the text, at most 8: proportional to the tokens a second if the round had waited for that
// drafter. 0 without a tree.
//
// Owned by DraftPool; leader thread only.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/types.h"
#include "speculation/drafter_choice.h"
#include "speculation/tree.h"

namespace specfabric::target {

class DrafterSelection {
 public:
  explicit DrafterSelection(const speculation::ChoiceOptions& options);

  void AddDrafter();
  int32_t drafters() const { return choice_.drafters(); }
  // teaches: its rounds tell what the drafters do for other sequences as well.
  void Open(base::SequenceId id, bool teaches = true);
  void Ended(base::SequenceId id);

  struct Choice {
    uint8_t drafter = 0;      // whose tree is verified
    bool ask_others = false;  // the round is scored: all others that are present are asked too
  };
  // For a round of an open sequence. text: its committed tokens; the last is the root of the
  // round's trees. present: [drafters] which of them have a worker. None: no drafter has.
  std::optional<Choice> Choose(base::SequenceId id, uint32_t round,
                               absl::Span<const base::TokenId> text,
                               const std::vector<bool>& present, base::Nanos now);
  // A drafter's tree for a round has come; text_size: the sequence's committed tokens by now.
  void OnTree(uint8_t drafter, base::SequenceId id, uint32_t round,
              const speculation::TokenTree& tree, int32_t text_size, base::Nanos now);
  // A step of the target took this long.
  void OnStep(base::Nanos time);

  // [drafters] the part of the last rounds for which each was chosen.
  const std::vector<double>& shares() const { return shares_; }
  uint64_t scored_rounds() const { return scored_rounds_; }

 private:
  // The trees of one round, kept until the text has shown how good they were.
  struct Trial {
    uint32_t round = 0;
    int32_t base = 0;  // committed tokens when the trees were asked for
    bool scored = false;
    base::Nanos asked_at = 0;
    struct Proposal {
      bool asked = false;
      speculation::TokenTree tree = {};  // empty: none came in time
      base::Nanos latency = 0;
    };
    std::vector<Proposal> proposals;  // by drafter
  };
  struct Sequence {
    speculation::DrafterChoice choice;
    bool teaches = true;
    // Of the present round, or of an earlier scored one until it is decided.
    std::optional<Trial> trial = {};
  };
  struct Silence {
    int32_t rounds = 0;   // in a row in which it was asked and sent nothing in time
    int32_t avoided = 0;  // choices since then
  };

  // Those that may be chosen: present ones, without those that have been silent while others are
  // left.
  std::vector<bool> Usable(const std::vector<bool>& present);
  // Rewards the trial's drafters if the text is long enough to tell.
  void Settle(absl::Span<const base::TokenId> text, Sequence* sequence);
  double Reward(const Trial::Proposal& proposal, int32_t levels) const;

  speculation::ChoiceOptions options_;
  speculation::DrafterChoice choice_;  // what all sequences have taught
  std::vector<Silence> silence_;       // by drafter
  std::vector<double> shares_;
  absl::flat_hash_map<base::SequenceId, Sequence> sequences_;
  uint64_t scored_rounds_ = 0;
  double step_ = 0;  // smoothed, ns
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFTER_SELECTION_H_
