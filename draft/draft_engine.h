#ifndef SPECFABRIC_DRAFT_DRAFT_ENGINE_H_
#define SPECFABRIC_DRAFT_DRAFT_ENGINE_H_

// Grows token trees for many sequences at once: every step of the model takes the pending prefixes
// and the frontiers of all trees together. Single-threaded; the service's engine thread owns it.
//
// How guesses are made follows from the request's coupling: for `coupled` the best scores under the
// noise that the target will use; for `typical` the likeliest tokens; for couplings that weigh the
// draft's own distribution they are drawn from it, and the weights they were drawn from go to the
// target in a slot of registered memory, where they are made.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "draft/session_table.h"
#include "model/rank_model.h"
#include "schemas/draft_weights.h"
#include "schemas/messages.h"
#include "speculation/confidence.h"
#include "speculation/growth.h"
#include "transport/slot_pool.h"

namespace specfabric::draft {

struct DraftEngineOptions {
  SessionTableOptions sessions;
  speculation::GrowthPolicy growth;
  // For couplings that weigh the draft's distribution: an expansion configuration, since whether a
  // node is drawn must not depend on what is drawn (verification.md section 3, Trimming).
  speculation::GrowthPolicy sampled_growth;
  // How siblings are drawn for them, and how many of the heaviest tokens are drawn from; 0: all.
  speculation::SiblingDraw sampled_draw = speculation::SiblingDraw::kWithoutReplacement;
  int32_t top_n = 0;
  int32_t max_step_tokens = 256;  // rows of one forward pass, all sequences together
};

// Weights to be sent beside a reply; without a lease there are none.
struct OutgoingWeights {
  transport::Lease lease;
  uint32_t bytes = 0;
  uint8_t pool = 0;  // the target's
};

class DraftEngine {
 public:
  // Called with every reply, on the thread that calls Accept and Step.
  using Reply = std::function<void(uint64_t peer, schemas::DraftReply, OutgoingWeights)>;
  // A slot of options' WeightsSlotBytes to write weights to. Unavailable: there is no memory for
  // weights; ResourceExhausted: none is free.
  using AcquireSlot = std::function<absl::StatusOr<transport::Lease>(const transport::Fence&)>;

  // `model` must have a KV cache of options.sessions.kv_blocks blocks.
  DraftEngine(const DraftEngineOptions& options, std::unique_ptr<model::RankModel> model,
              AcquireSlot acquire_slot, Reply reply);

  // What the weights of the largest tree of sampled_growth take.
  static size_t WeightsSlotBytes(const DraftEngineOptions& options, int32_t vocabulary);

  // Takes a request, or answers at once why not. A newer request of the same sequence supersedes
  // one that is still growing, which then gets no reply: the target has moved on.
  void Accept(uint64_t peer, const schemas::DraftRequest& request, base::Nanos now);
  void EndSession(const SessionKey& key);
  void PeerGone(uint64_t target_incarnation);
  void SetDraining() { draining_ = true; }

  bool idle() const { return jobs_.empty(); }
  // One forward pass for all jobs; replies for those that are complete or out of time.
  absl::Status Step();

  SessionTable& sessions() { return sessions_; }
  uint64_t nodes_drafted() const { return nodes_drafted_; }

 private:
  struct NoiseRow {
    int32_t position = -1;
    std::vector<float> values;
  };
  struct Job {
    uint64_t peer = 0;
    schemas::DraftRequest request;
    Session* session = nullptr;
    speculation::TreeGrower grower;
    base::Nanos started = 0;
    speculation::SiblingDraw draw = speculation::SiblingDraw::kCoupledTopK;
    // Where the coupling needs rows: their slot, its shape with as many rows as it takes, and how
    // many are written.
    transport::Lease slot = {};
    schemas::DraftWeightsShape shape = {};
    int32_t rows = 0;
    std::vector<int32_t> frontier = {};  // nodes in the batch at hand; empty while prefilling
    std::vector<NoiseRow> noise = {};    // one for each depth reached
  };
  struct Candidates {
    std::vector<speculation::ScoredToken> tokens;
    std::vector<float> logprobs;
  };

  void AddRows(Job* job, int32_t budget, model::Batch* batch);
  void AddPrefix(Job* job, int32_t rows, model::Batch* batch);
  void AddFrontier(Job* job, model::Batch* batch);
  // Applies the pass to the job; `logit` counts through the rows of `logits`.
  void Absorb(Job* job, int32_t rows, const model::LogitShard& logits, int32_t* logit);
  void ExpandNode(Job* job, int node, absl::Span<const float> logits);
  // The best of the scores under the noise given; without noise the likeliest.
  Candidates BestTokens(const Job& job, int width, absl::Span<const float> noise,
                        absl::Span<const float> logits);
  // Drawn from the row of weights that this adds to the job's slot.
  Candidates DrawnTokens(Job* job, int node, int32_t position, int width,
                         absl::Span<const float> logits);
  // From what the target chose where this worker had guessed.
  void LearnFrom(const schemas::DraftRequest& request);
  speculation::Confidence& confidence(speculation::Coupling coupling) {
    return confidence_[static_cast<size_t>(coupling)];
  }
  void StopWhatDoesNotPay();
  // The job is over, whatever came of it.
  void Leave(Job* job);
  absl::Status PrepareWeights(const schemas::DraftRequest& request, Job* job);
  absl::Span<const float> Noise(Job* job, int32_t position);
  bool Done(const Job& job, base::Nanos now) const;
  void Finish(Job* job, base::Nanos now);
  void Supersede(const SessionKey& key);
  schemas::DraftReply ReplyTo(const schemas::DraftRequest& request,
                              schemas::DraftStatus status) const;

  DraftEngineOptions options_;
  std::unique_ptr<model::RankModel> model_;
  AcquireSlot acquire_slot_;
  Reply reply_;
  SessionTable sessions_;
  std::vector<std::unique_ptr<Job>> jobs_;                          // oldest first
  absl::flat_hash_map<uint64_t, speculation::GrowthRound> rounds_;  // by target incarnation
  std::vector<model::KvMove> moves_;                                // before the next pass
  std::array<speculation::Confidence, speculation::kCouplings> confidence_;
  std::vector<float> masked_;          // scratch: filtered logits
  std::vector<uint16_t> cut_weights_;  // scratch: a row that is sent cut
  base::Nanos pass_time_ = 0;  // smoothed; one held up, or long for its prompts, counts less
  bool draining_ = false;
  uint64_t nodes_drafted_ = 0;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_DRAFT_ENGINE_H_
