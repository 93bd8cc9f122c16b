#ifndef SPECFABRIC_TARGET_DRAFTER_H_
#define SPECFABRIC_TARGET_DRAFTER_H_

// One drafter (draft model) of a target: which of its workers is asked for a sequence's tree, and
// what follows from each status of a reply. Sessions are owned by DraftPool, which says which one a
// call is about. What it finds out is returned; requests go out through functions, so that tests
// need no transport. Leader thread only.

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/types.h"
#include "scheduler/routing/draft_router.h"
#include "scheduler/scheduler.h"
#include "schemas/messages.h"
#include "speculation/tree.h"
#include "target/draft_session.h"

namespace specfabric::target {

// A tree has come; for Scheduler::OnDraft or, if `extra`, OnExtraDraft.
struct DraftArrived {
  base::SequenceId id = 0;
  uint32_t round = 0;
  speculation::Draft draft;
  bool extra = false;  // from a drafter that was asked in addition to the chosen one
  // Of a reply to the request in flight. None: the round is over, and the tree only tells how long
  // it took and what it would have gained.
  struct Times {
    base::Nanos round_trip = 0;
    base::Nanos draft = 0;  // what the worker says it took, at most round_trip
  };
  std::optional<Times> times = {};
};

// No tree will come for this round; for Scheduler::OnNoDraft.
struct NoDraft {
  base::SequenceId id = 0;
  uint32_t round = 0;
};

using DraftEvent = std::variant<DraftArrived, NoDraft>;

// Since start. Every reply and every failure is counted in one of these.
struct DraftPoolStats {
  uint64_t requests = 0;
  uint64_t replies[6] = {};  // by schemas::DraftStatus
  uint64_t misses = 0;       // requests without a usable reply: late, not sent, invalid, or lost
  // Replies to an earlier request, round or incarnation, or from a peer without the session.
  uint64_t stale = 0;
  uint64_t invalid = 0;      // replies whose tree or draft probabilities are not valid
  uint64_t mismatched = 0;   // replies for another verification method or other sampling
  uint64_t draft_probs = 0;  // tensors that came with a valid tree
  uint64_t draft_probs_bytes = 0;
  uint64_t refused_draft_probs = 0;  // announced, but no slot was free for them
  uint64_t resyncs = 0;
  uint64_t unroutable = 0;  // rounds that no worker could take, or none that has the states
};

// How a target's drafters reach their workers.
struct DraftOutbox {
  std::function<absl::Status(PeerId, const schemas::DraftRequest&)> request;
  std::function<void(PeerId, const schemas::EndSession&)> end_session;
};

class Drafter {
 public:
  // All but `router` must outlive it. index: see speculation::Draft::drafter.
  Drafter(uint8_t index, const scheduler::DraftRouterOptions& router,
          const DraftSessionOptions* options, const DraftOutbox* outbox, DraftPoolStats* stats)
      : index_(index), options_(options), outbox_(outbox), stats_(stats), router_(router) {}

  scheduler::DraftRouter& router() { return router_; }
  const scheduler::DraftRouter& router() const { return router_; }
  bool has_worker() const;  // one that is not draining
  // Whether its workers read the target's hidden states.
  bool reads_states() const { return reads_states_; }
  void set_reads_states(bool reads) { reads_states_ = reads; }
  // The worker that the states of the session's sequence go to now, and that will be asked for its
  // trees; 0: none can be. `committed`: tokens of its text.
  PeerId StateReader(base::SequenceId id, int32_t committed, base::Nanos now,
                     DraftSession* session);

  // `text`: the committed tokens (prompt and output) of the session's sequence.

  // Asks a worker for the tree of a new round. extra: in addition to the chosen drafter.
  std::optional<NoDraft> Ask(const scheduler::DraftWanted& want, bool extra,
                             absl::Span<const base::TokenId> text, base::Nanos now,
                             DraftSession* session);
  // A reply of the session's worker, of whatever round.
  std::optional<DraftEvent> OnReply(schemas::DraftReply reply, absl::Span<const base::TokenId> text,
                                    base::Nanos now, DraftSession* session);
  // Draft probabilities of the round that is in flight.
  std::optional<DraftEvent> OnDraftProbs(transport::KeptTensor tensor,
                                         absl::Span<const base::TokenId> text, base::Nanos now,
                                         DraftSession* session);
  // The session's round gets no tree. None in an extra round, which nobody waits for.
  static std::optional<NoDraft> GiveUp(DraftSession* session);
  // The request in flight has had no usable reply in time.
  void CountMiss(base::Nanos now, DraftSession* session);
  // The sequence is over.
  void End(base::SequenceId id, const DraftSession& session);

 private:
  // The next ones give the round up where they cannot go on.
  std::optional<NoDraft> SendRequest(PeerId worker, absl::Span<const base::TokenId> text,
                                     base::Nanos now, DraftSession* session);
  // Tells the session's worker, if it has one, to forget the sequence, and forgets the worker.
  void Leave(DraftSession* session);
  std::optional<NoDraft> Resync(const schemas::DraftReply& reply,
                                absl::Span<const base::TokenId> text, base::Nanos now,
                                DraftSession* session);
  std::optional<NoDraft> OnRefusal(schemas::DraftStatus status, base::Nanos now,
                                   DraftSession* session);
  std::optional<DraftEvent> OnOk(schemas::DraftReply reply, absl::Span<const base::TokenId> text,
                                 base::Nanos now, DraftSession* session);
  std::optional<DraftEvent> OnComplete(schemas::DraftReply reply,
                                       absl::Span<const base::TokenId> text, base::Nanos now,
                                       DraftSession* session);
  // The router learns the latency of a worker whose reply nobody waited for.
  void LearnLatency(const schemas::DraftReply& reply, base::Nanos now, DraftSession* session);
  // The tree of a reply to a round that is over; none if there is nothing to learn from it.
  std::optional<DraftEvent> LateDraft(schemas::DraftReply reply, const DraftSession& session) const;

  const uint8_t index_;
  const DraftSessionOptions* const options_;
  const DraftOutbox* const outbox_;
  DraftPoolStats* const stats_;
  scheduler::DraftRouter router_;
  bool reads_states_ = false;
  uint64_t next_request_ = 1;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFTER_H_
