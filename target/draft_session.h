#ifndef SPECFABRIC_TARGET_DRAFT_SESSION_H_
#define SPECFABRIC_TARGET_DRAFT_SESSION_H_

// One sequence's session with the workers of one drafter, as the target knows it: which worker
// holds it, which prefix that worker has acknowledged, the request in flight, and the parts of its
// reply (tree and draft probabilities) that wait for each other. Makes requests and checks replies.
// It neither sends nor chooses workers: DraftPool does, which owns it. Leader thread only.

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/trace_context.h"
#include "base/types.h"
#include "scheduler/scheduler.h"
#include "schemas/messages.h"
#include "speculation/draft_probs.h"
#include "speculation/tree.h"
#include "transport/kept_tensor.h"

namespace specfabric::target {

using PeerId = uint64_t;

// Does for draft probabilities in a device's memory what speculation::DraftProbs::Open does for
// those in the host's.
using OpenOnDevice = std::function<absl::StatusOr<speculation::DraftProbs>(
    const speculation::DraftProbsShape&, absl::Span<const uint8_t>)>;

// The same for all sessions of a target.
struct DraftSessionOptions {
  uint64_t incarnation = 0;  // the target's
  int32_t vocabulary = 0;
  // Where drafts send draft probabilities: one pool of slots for each rank of the group, 0 to
  // draft_probs_pools - 1, with slots of draft_probs_bytes (0: none are taken). Those of a sequence
  // go to the rank that verifies it, its id modulo draft_probs_pools.
  int32_t draft_probs_pools = 1;
  uint32_t draft_probs_bytes = 0;
  OpenOnDevice open_on_device = nullptr;  // null: the pools are in the host's memory
};

// The same in all requests of a sequence.
struct DraftTerms {
  base::SamplingParams sampling = {};
  int32_t prompt_length = 0;
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;
  uint32_t attempt = 0;
  base::TraceContext trace = {};  // its span is this target's part of the request
};

class DraftSession {
 public:
  explicit DraftSession(const DraftTerms& terms) : terms_(terms) {}

  // The worker that holds the session; 0: none does.
  PeerId worker() const { return worker_; }
  // What the present round wants; its `id` is the sequence's.
  const scheduler::DraftWanted& want() const { return want_; }
  const DraftTerms& terms() const { return terms_; }
  bool in_flight() const { return request_id_ != 0; }
  uint64_t request_id() const { return request_id_; }  // of the request in flight; 0: none is
  base::Nanos sent() const { return sent_; }           // the last request
  // Whether another drafter's tree is verified in this round, and this session's in addition.
  bool extra(uint32_t round) const { return extra_round_ == round; }

  // Begins a round. Everything that the round before still waits for is dropped.
  void StartRound(const scheduler::DraftWanted& want, bool extra);
  // The request of the present round; text: the sequence's committed tokens. It is in flight from
  // now on.
  schemas::DraftRequest MakeRequest(const DraftSessionOptions& options,
                                    absl::Span<const base::TokenId> text, uint64_t request_id,
                                    base::Nanos now);
  // The session moves to a worker that holds nothing of it yet.
  void MoveTo(PeerId worker);
  // No worker holds the session.
  void Forget();
  // Of a drafter that reads hidden states: the worker was sent those of the last committed tokens,
  // so that it can draft. False again once it is another.
  bool has_states() const { return has_states_; }
  void SetHasStates(bool has) { has_states_ = has; }
  // No reply will come for the present round, or none that can be used.
  void GiveUp();

  // The worker does not hold the prefix that the request named. True: it is to be asked once more,
  // from the longest of the points it knows or, the second time, from nothing. False: it was the
  // third such reply of the round; ask another worker.
  bool Resync(absl::Span<const schemas::PrefixPoint> known, absl::Span<const base::TokenId> text);

  // Keeps the part of a reply until the other is there; returns the reply as soon as it is
  // complete.
  std::optional<schemas::DraftReply> Join(schemas::DraftReply reply);
  std::optional<schemas::DraftReply> Join(transport::KeptTensor tensor);
  // Takes the tree out of the complete reply to the request in flight, which then is answered: the
  // worker holds the text up to want().committed. InvalidArgument: the tree is not what the request
  // allows, or its draft probabilities are not valid.
  absl::StatusOr<speculation::Draft> TakeDraft(const DraftSessionOptions& options,
                                               absl::Span<const base::TokenId> text,
                                               schemas::DraftReply* reply);

  // Those that the present tree was drawn from; null: it needs none.
  const speculation::DraftProbs* draft_probs() const {
    return draft_probs_ ? &draft_probs_->rows : nullptr;
  }
  void ReleaseDraftProbs() { draft_probs_.reset(); }

  // The next round begins while a request is in flight. Returns what that means for the worker:
  enum class Unanswered {
    kCounted,    // nothing: the request has been counted as a miss before
    kMiss,       // a miss: the worker has not answered anything for too long
    kAbandoned,  // nothing about the worker: the round only went on without its draft
  };
  Unanswered LeaveRequest(base::Nanos now);
  // Marks the request in flight as missed; false if it was before.
  bool MarkMissed();
  bool missed() const { return missed_; }
  // The worker has sent a reply. Returns the request that was left last, once, if this answers it.
  struct LeftRequest {
    uint64_t id = 0;  // 0: none
    base::Nanos sent = 0, deadline = 0;
  };
  std::optional<LeftRequest> OnAnswer(uint64_t request_id);

 private:
  struct ReceivedDraftProbs {
    transport::KeptTensor tensor;
    speculation::DraftProbs rows;  // of `tensor`
  };

  // The prefix that the round asks about. The text may be longer by now.
  absl::Span<const base::TokenId> Asked(absl::Span<const base::TokenId> text) const;
  bool NeedsDraftProbs(const schemas::DraftReply& reply) const;
  absl::Status OpenDraftProbs(const DraftSessionOptions& options, const schemas::DraftReply& reply,
                              speculation::Draft* draft);

  const DraftTerms terms_;
  PeerId worker_ = 0;
  bool has_states_ = false;
  int32_t acked_length_ = 0;  // committed tokens that the worker is known to hold
  uint64_t acked_hash_ = base::kEmptyPrefixHash;

  // The present round.
  scheduler::DraftWanted want_;
  uint32_t extra_round_ = 0;  // the last round in which this drafter was asked in addition
  uint64_t request_id_ = 0;
  base::Nanos sent_ = 0;
  int resyncs_ = 0;
  bool missed_ = false;
  std::optional<schemas::DraftReply> early_reply_;
  std::optional<transport::KeptTensor> early_tensor_;
  std::optional<ReceivedDraftProbs> draft_probs_;

  base::Nanos unanswered_since_ = 0;  // the first request since the worker's last reply; 0: none
  LeftRequest left_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFT_SESSION_H_
