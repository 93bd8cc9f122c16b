#ifndef SPECFABRIC_TARGET_DRAFT_POOL_H_
#define SPECFABRIC_TARGET_DRAFT_POOL_H_

// All draft workers of a target. A drafter is a draft model, known by the name that its workers
// announce (Hello::model); the pool owns the drafters, their sessions for each sequence, and the
// choice which of them is asked (DrafterSelection).
//
// A request may name the one source that drafts for it (SequenceRequest::drafter): a drafter by its
// model's name, or kNgramLookupName. These are the names that metrics use.
//
// It does not know the scheduler: what it finds out is returned, and the target engine hands it on.
// `text` is the committed tokens (prompt and output) of the sequence that a call is about. Leader
// thread only.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/types.h"
#include "scheduler/routing/draft_router.h"
#include "scheduler/scheduler.h"
#include "schemas/messages.h"
#include "speculation/draft_probs.h"
#include "speculation/drafter_choice.h"
#include "target/draft_session.h"
#include "target/drafter.h"
#include "target/drafter_selection.h"
#include "transport/fabric.h"

namespace specfabric::target {

constexpr const char* kNgramLookupName = "ngram_lookup";

struct DraftPoolOptions {
  DraftSessionOptions sessions;
  scheduler::DraftRouterOptions router;
  speculation::ChoiceOptions choice;
};

class DraftPool {
 public:
  DraftPool(const DraftPoolOptions& options, DraftOutbox outbox);
  DraftPool(const DraftPool&) = delete;
  DraftPool& operator=(const DraftPool&) = delete;

  // Workers of more than kMaxDrafters models are not used.
  void PeerUp(PeerId peer, const schemas::Hello& hello);
  // Returns the rounds that were waiting for this worker.
  std::vector<NoDraft> PeerDown(PeerId peer);
  void PeerDraining(PeerId peer);

  // The sources of a request that names this one; all if it is empty, none if it is not known
  // (yet).
  scheduler::DraftSources SourcesOf(const std::string& drafter) const;
  // A sequence starts that only these drafters (a bit set) draft for, or is over. teaches: as
  // DrafterSelection::Open. One that is not opened has no drafts.
  void Open(base::SequenceId id, const DraftTerms& terms,
            uint32_t drafters = scheduler::kAllDrafters, bool teaches = true);
  void Ended(base::SequenceId id);

  // Asks a worker of the chosen drafter for a tree; in a scored round a worker of each drafter.
  // Returns the round where no worker can be asked.
  std::optional<NoDraft> Want(const scheduler::DraftWanted& want,
                              absl::Span<const base::TokenId> text, base::Nanos now);
  // The workers that read the hidden states of this sequence: of each drafter that reads any, the
  // one that has, or will have, the sequence's session.
  std::vector<PeerId> StateReadersOf(base::SequenceId id, int32_t committed, base::Nanos now);
  // Some of the states that this worker was to get were left out: it is not asked before it has
  // later ones.
  void StatesLeftOut(PeerId peer, base::SequenceId id);
  // A tree and its draft probabilities may come in either order; the call that completes the pair
  // returns the event.
  std::optional<DraftEvent> OnReply(PeerId peer, schemas::DraftReply reply,
                                    absl::Span<const base::TokenId> text, base::Nanos now);
  std::optional<DraftEvent> OnDraftProbs(PeerId peer, transport::KeptTensor tensor,
                                         absl::Span<const base::TokenId> text, base::Nanos now);
  // The fabric had no slot for the draft probabilities of a round.
  std::optional<NoDraft> OnDraftProbsRefused(PeerId peer, const transport::TensorFields& fields);
  // Counts requests past their deadline as misses of their workers.
  void Expire(base::Nanos now);
  // A step of the target took this long.
  void OnStep(base::Nanos time) { selection_.OnStep(time); }

  // The draft probabilities that the sequence's present tree was drawn from; null: it needs none.
  const speculation::DraftProbs* draft_probs(base::SequenceId id) const;
  // The tree has been verified, or never will be: its slot is free again.
  void ReleaseDraftProbs(base::SequenceId id);

  const DraftPoolStats& stats() const { return stats_; }
  int32_t workers() const { return static_cast<int32_t>(drafter_of_.size()); }
  uint32_t connected() const;  // bit set of the drafters that have a worker, draining or not
  const std::vector<scheduler::DraftState>& routes();  // of all workers
  // By drafter: its model's name, and the part of the last rounds for which it was chosen.
  const std::vector<std::string>& names() const { return names_; }
  bool reads_states(size_t drafter) const { return drafters_[drafter].reads_states(); }
  const std::vector<double>& shares() const { return selection_.shares(); }
  uint64_t scored_rounds() const { return selection_.scored_rounds(); }

 private:
  struct Sequence {
    DraftTerms terms;
    uint32_t drafters = scheduler::kAllDrafters;             // that may draft for it
    uint8_t chosen = 0;                                      // drafter of the present round
    std::vector<std::optional<DraftSession>> sessions = {};  // by drafter; none: never asked
  };
  // The session of a sequence that a peer holds.
  struct Held {
    Drafter* drafter = nullptr;
    DraftSession* session = nullptr;  // null: the peer holds none
  };

  uint8_t AddDrafter(const std::string& name);
  std::optional<DrafterSelection::Choice> Choose(const scheduler::DraftWanted& want,
                                                 const Sequence& sequence,
                                                 absl::Span<const base::TokenId> text,
                                                 const std::vector<bool>& present, base::Nanos now);
  DraftSession* SessionOf(uint8_t drafter, Sequence* sequence);
  std::optional<NoDraft> Ask(uint8_t drafter, const scheduler::DraftWanted& want, bool extra,
                             absl::Span<const base::TokenId> text, base::Nanos now,
                             Sequence* sequence);
  Held FindHeld(PeerId peer, base::SequenceId id, uint64_t incarnation);
  // The session whose request in flight is of this round. If there is none, counts what came as
  // stale.
  Held FindRound(PeerId peer, base::SequenceId id, const transport::Fence& fence);
  // Passes the event's tree, if it has one, to selection_; returns the event.
  std::optional<DraftEvent> Noted(std::optional<DraftEvent> event,
                                  absl::Span<const base::TokenId> text, base::Nanos now);

  const DraftPoolOptions options_;
  const DraftOutbox outbox_;
  DraftPoolStats stats_;
  std::vector<std::string> names_;  // by drafter
  std::deque<Drafter> drafters_;
  absl::flat_hash_map<PeerId, uint8_t> drafter_of_;  // of all workers that are up
  absl::flat_hash_map<base::SequenceId, Sequence> sequences_;
  DrafterSelection selection_;
  std::vector<scheduler::DraftState> routes_;  // of several drafters
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFT_POOL_H_
