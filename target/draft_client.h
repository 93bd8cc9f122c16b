#ifndef SPECFABRIC_TARGET_DRAFT_CLIENT_H_
#define SPECFABRIC_TARGET_DRAFT_CLIENT_H_

// A target's conversation with the workers of one drafter: which worker serves which sequence, what
// that worker is known to hold, and what to do about every status of a reply. Owned by the leader
// thread; sends and tells what came through functions, so that tests need no transport.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/routing/draft_router.h"
#include "scheduler/scheduler.h"
#include "schemas/messages.h"
#include "speculation/draft_probs.h"
#include "transport/fabric.h"

namespace specfabric::target {

using PeerId = uint64_t;

// As speculation::DraftProbs::Open, of draft_probs in a device's memory.
using OpenOnDevice = std::function<absl::StatusOr<speculation::DraftProbs>(
    const speculation::DraftProbsShape&, absl::Span<const uint8_t>)>;

struct DraftClientOptions {
  uint64_t incarnation = 0;  // ours
  int32_t vocabulary = 0;
  scheduler::DraftRouterOptions router;
  // Where drafts send their draft_probs: one pool for each rank of the group, 0 to
  // draft_probs_pools - 1, with slots of draft_probs_bytes. A sequence's go to its owner, rank (id
  // modulo draft_probs_pools).
  int32_t draft_probs_pools = 1;
  uint32_t draft_probs_bytes = 0;
  uint8_t drafter = 0;                    // of what comes: speculation::Draft::drafter
  OpenOnDevice open_on_device = nullptr;  // where the pools are of a GPU's memory
};

// What becomes of a sequence's round: a tree (perhaps of a round that is over), or none.
struct DraftSink {
  std::function<void(base::SequenceId, uint32_t round, speculation::Draft, base::Nanos now)> draft;
  std::function<void(base::SequenceId, uint32_t round)> none;
};

// What all requests of a sequence say alike.
struct DraftTerms {
  base::SamplingParams sampling = {};
  int32_t prompt_length = 0;
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;
  uint32_t attempt = 0;
  base::TraceContext trace = {};  // its span is this target's part of the request
};

// A tensor of draft_probs as it came. Large ones lie in a slot, small ones are a copy.
struct DraftProbsTensor {
  transport::TensorFields fields;
  transport::Lease lease;
  uint32_t lease_bytes = 0;
  std::vector<uint8_t> copy;
  bool on_device() const {
    return lease && lease.pool()->options().kind == transport::MemoryKind::kCuda;
  }
  absl::Span<const uint8_t> bytes() const {
    return lease ? absl::MakeConstSpan(lease.data(), lease_bytes) : absl::MakeConstSpan(copy);
  }
};

// Every reply and every failure ends in one of these counters.
struct DraftClientStats {
  uint64_t requests = 0;
  uint64_t replies[6] = {};  // by schemas::DraftStatus
  uint64_t misses = 0;       // no usable reply by the deadline
  uint64_t stale = 0;        // replies to an earlier request, round or incarnation
  uint64_t invalid = 0;      // trees or draft_probs that do not validate
  uint64_t mismatched =
      0;  // made for another verification method or other sampling than was asked for
  uint64_t draft_probs = 0;  // tensors verified by
  uint64_t draft_probs_bytes = 0;
  uint64_t refused_draft_probs = 0;  // announced, but no slot took them
  uint64_t resyncs = 0;
  uint64_t unroutable = 0;  // no worker could take the round
};

class DraftClient {
 public:
  using Send = std::function<absl::Status(PeerId, const schemas::DraftRequest&)>;
  using SendEnd = std::function<void(PeerId, const schemas::EndSession&)>;

  DraftClient(const DraftClientOptions& options, scheduler::Scheduler* scheduler, Send send,
              SendEnd send_end, DraftSink sink);

  void PeerUp(PeerId peer, const schemas::Hello& hello);
  // Rounds that were waiting for this worker go on plainly; their sequences are re-routed.
  void PeerDown(PeerId peer);
  void PeerDraining(PeerId peer);

  // A sequence starts.
  void Open(base::SequenceId id, const DraftTerms& terms);
  // Asks a worker for a tree, or tells at once that none will come.
  void Want(const scheduler::DraftWanted& want, base::Nanos now);
  // A reply that needs draft_probs waits for them, and they for it. True: the scheduler has the
  // tree.
  bool OnReply(PeerId peer, schemas::DraftReply reply, base::Nanos now);
  bool OnDraftProbs(PeerId peer, DraftProbsTensor tensor, base::Nanos now);
  // The fabric refused the draft_probs of a round: it goes on plainly.
  void OnDraftProbsRefused(PeerId peer, const transport::TensorFields& fields);
  // What the sequence's present tree was drawn from; null: nothing that was sent.
  const speculation::DraftProbs* draft_probs(base::SequenceId id) const;
  // The tree has been verified: its slot is free again.
  void ReleaseDraftProbs(base::SequenceId id);
  // Counts requests past their deadline as misses of their workers.
  void Expire(base::Nanos now);
  void Ended(base::SequenceId id);

  const DraftClientStats& stats() const { return stats_; }
  int32_t workers() const { return static_cast<int32_t>(capacity_.size()); }
  const std::vector<scheduler::DraftState>& routes() const { return router_.States(); }
  // The round trip and the draft's own time of the last good reply, for the round spans.
  base::Nanos last_round_trip() const { return last_round_trip_; }
  base::Nanos last_draft_time() const { return last_draft_time_; }

 private:
  struct ReceivedDraftProbs {
    DraftProbsTensor tensor;
    speculation::DraftProbs rows;  // of the tensor
  };
  struct Route {
    DraftTerms terms;
    PeerId worker = 0;         // that holds the session; 0: none yet
    int32_t acked_length = 0;  // committed tokens it is known to hold
    uint64_t acked_hash = 0;
    // The request in flight; id 0 is none.
    uint64_t request_id = 0;
    scheduler::DraftWanted want;
    base::Nanos sent = 0;
    base::Nanos unanswered_since = 0;  // the first request of those without any reply; 0: none
    bool miss_counted = false;         // as a miss of the worker; its reply may still come
    uint64_t left_id = 0;              // the request before it that was left unanswered; 0: none
    base::Nanos left_sent = 0, left_deadline = 0;
    int resyncs = 0;  // in this round
    // Of this round, waiting for each other.
    std::optional<schemas::DraftReply> early_reply;
    std::optional<DraftProbsTensor> early_draft_probs;
    std::optional<ReceivedDraftProbs> draft_probs;  // of the tree that the scheduler has
  };

  // The round's request to the worker the router chose, or once more to the same one.
  void SendRequest(Route* route, PeerId worker, base::Nanos now);
  // Whatever a worker answers shows that it lives. What comes after its round is never verified,
  // but tells the scheduler how long trees take and what they gain.
  void LearnFrom(PeerId peer, const schemas::DraftReply& reply, base::Nanos now);
  // The route whose request in flight at this peer is of this round, or null: what came is stale.
  Route* FindRound(PeerId peer, base::SequenceId id, const transport::Fence& fence);
  // Of the round before, which went on without its reply.
  void LeaveRequest(Route* route, base::Nanos now);
  void CountMiss(Route* route, base::Nanos now);
  void GiveUp(Route* route);
  void ForgetSession(Route* route);
  void HandleResync(Route* route, const schemas::DraftReply& reply, base::Nanos now);
  bool HandleOk(Route* route, schemas::DraftReply reply, base::Nanos now);
  bool HandleTree(Route* route, const schemas::DraftReply& reply, base::Nanos now);
  // Checks a good reply's tree, and its draft_probs if it needs them.
  absl::StatusOr<speculation::Draft> ToDraft(Route* route, const schemas::DraftReply& reply,
                                             base::TokenId root);

  const DraftClientOptions options_;
  scheduler::Scheduler* const scheduler_;
  const Send send_;
  const SendEnd send_end_;
  const DraftSink sink_;
  scheduler::DraftRouter router_;
  absl::flat_hash_map<PeerId, int32_t> capacity_;
  absl::flat_hash_map<base::SequenceId, Route> routes_;
  uint64_t next_request_ = 1;
  DraftClientStats stats_;
  base::Nanos last_round_trip_ = 0;
  base::Nanos last_draft_time_ = 0;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFT_CLIENT_H_
