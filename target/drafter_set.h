#ifndef SPECFABRIC_TARGET_DRAFTER_SET_H_
#define SPECFABRIC_TARGET_DRAFTER_SET_H_

// A target's drafters. A drafter is a draft model, told apart by the name that its workers announce
// (Hello::model), and has a DraftClient of its own: workers, routes, sessions. Which of them
// guesses is chosen for each sequence and round (speculation/drafter_choice.h).
//
// A sequence begins with what all sequences before it taught, and goes on to learn for itself: one
// text is code, another prose. Some rounds are scored: all drafters are asked, each tree is
// compared with the text that follows, and where the verification method Merges all of them are
// verified together. In the other rounds only the chosen one is asked. With one drafter nothing is
// scored.
//
// What a round is rewarded with: (1 + levels that agree with the text), as a part of the most that
// counts, times step / (step + latency): tokens a second, had the round waited for that drafter.
//
// Owned by the leader thread, like its clients.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "speculation/drafter_choice.h"
#include "speculation/tree.h"
#include "target/draft_client.h"

namespace specfabric::target {

class DrafterSet {
 public:
  DrafterSet(const DraftClientOptions& options, const speculation::ChoiceOptions& choice,
             scheduler::Scheduler* scheduler, DraftClient::Send send,
             DraftClient::SendEnd send_end);

  // As DraftClient's. Workers of more than kMaxDrafters models are not used.
  void PeerUp(PeerId peer, const schemas::Hello& hello);
  void PeerDown(PeerId peer);
  void PeerDraining(PeerId peer);
  void Open(base::SequenceId id, const DraftTerms& terms);
  void Want(const scheduler::DraftWanted& want, base::Nanos now);
  bool OnReply(PeerId peer, schemas::DraftReply reply, base::Nanos now);
  bool OnDraftProbs(PeerId peer, DraftProbsTensor tensor, base::Nanos now);
  void OnDraftProbsRefused(PeerId peer, const transport::TensorFields& fields);
  const speculation::DraftProbs* draft_probs(base::SequenceId id) const;
  void ReleaseDraftProbs(base::SequenceId id);
  void Expire(base::Nanos now);
  void Ended(base::SequenceId id);
  // A step of the group took so long.
  void OnStep(base::Nanos time);

  DraftClientStats stats() const;  // of all clients
  int32_t workers() const { return static_cast<int32_t>(drafter_of_.size()); }
  const std::vector<scheduler::DraftState>& routes();  // of all clients
  base::Nanos last_round_trip() const { return last_round_trip_; }
  base::Nanos last_draft_time() const { return last_draft_time_; }

  // By drafter: its model's name, and the part of the last rounds that it was chosen for.
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<double>& shares() const { return shares_; }
  uint64_t scored_rounds() const { return scored_rounds_; }

 private:
  // The trees of one round, until the text has shown how good they were.
  struct Trial {
    uint32_t round = 0;
    int32_t base = 0;  // committed tokens, the root of its trees being the last
    bool scored = false;
    base::Nanos asked = 0;
    struct Proposal {
      speculation::TokenTree tree;  // empty: none came
      base::Nanos latency = 0;
    };
    std::vector<Proposal> proposals;  // by drafter
    std::vector<bool> asked_of;       // by drafter
  };
  struct Sequence {
    DraftTerms terms;
    speculation::DrafterChoice choice;
    std::vector<bool> open = {};       // by drafter: its client knows the sequence
    std::vector<uint32_t> extra = {};  // by drafter: the last round in which it was another's too
    uint8_t chosen = 0;
    std::optional<Trial> trial =
        {};  // of the present round, or of a scored one until it is decided
  };

  DraftClient* Client(PeerId peer);
  uint8_t AddDrafter(const std::string& name);
  bool Present(size_t drafter) const;  // has a worker that stays
  // Those that may be chosen: that are present and, where others are, have not been silent.
  std::vector<bool> Usable();
  void Ask(const scheduler::DraftWanted& want, uint8_t drafter, bool extra, Sequence* sequence,
           base::Nanos now);
  void OnTree(uint8_t drafter, base::SequenceId id, uint32_t round, speculation::Draft draft,
              base::Nanos now);
  void Note(uint8_t drafter, base::SequenceId id, uint32_t round,
            const speculation::TokenTree& tree, base::Nanos now, Sequence* sequence);
  void OnNone(uint8_t drafter, base::SequenceId id, uint32_t round);
  // Rewards the trial's drafters if the text has gone far enough.
  void Settle(base::SequenceId id, Sequence* sequence);
  double Reward(const Trial::Proposal& proposal, int32_t levels) const;
  bool Noted(bool tree, PeerId peer);

  const DraftClientOptions options_;
  scheduler::Scheduler* const scheduler_;
  const DraftClient::Send send_;
  const DraftClient::SendEnd send_end_;
  speculation::ChoiceOptions choice_options_;
  speculation::DrafterChoice choice_;                  // what all sequences have taught
  std::vector<std::unique_ptr<DraftClient>> clients_;  // by drafter
  std::vector<std::string> names_;
  std::vector<double> shares_;
  struct Silence {
    int32_t rounds = 0;   // in a row that it was asked in and sent nothing in time
    int32_t avoided = 0;  // choices since then
  };
  std::vector<Silence> silence_;
  std::vector<scheduler::DraftState> routes_;
  absl::flat_hash_map<PeerId, uint8_t> drafter_of_;
  absl::flat_hash_map<base::SequenceId, Sequence> sequences_;
  uint64_t scored_rounds_ = 0;
  double step_ = 0;  // smoothed, ns
  base::Nanos last_round_trip_ = 0, last_draft_time_ = 0;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFTER_SET_H_
