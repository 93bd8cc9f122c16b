#ifndef SPECFABRIC_DRAFT_DRAFT_ENGINE_H_
#define SPECFABRIC_DRAFT_DRAFT_ENGINE_H_

// Grows token trees for many sequences at once: every step of the model takes the pending prefixes
// and the frontiers of all trees together. Single-threaded; the service's engine thread owns it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "draft/session_table.h"
#include "model/rank_model.h"
#include "schemas/messages.h"
#include "speculation/growth.h"

namespace specfabric::draft {

struct DraftEngineOptions {
  SessionTableOptions sessions;
  speculation::GrowthPolicy growth;
  int32_t max_step_tokens = 256;  // rows of one forward pass, all sequences together
};

class DraftEngine {
 public:
  // Called with every reply, on the thread that calls Accept and Step.
  using Reply = std::function<void(uint64_t peer, schemas::DraftReply)>;

  // `model` must have a KV cache of options.sessions.kv_blocks blocks.
  DraftEngine(const DraftEngineOptions& options, std::unique_ptr<model::RankModel> model,
              Reply reply);

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
    std::vector<int32_t> frontier;  // nodes in the batch at hand; empty while prefilling
    std::vector<NoiseRow> noise;    // one for each depth reached
  };

  void AddRows(Job* job, int32_t budget, model::Batch* batch);
  void AddPrefix(Job* job, int32_t rows, model::Batch* batch);
  void AddFrontier(Job* job, model::Batch* batch);
  // Applies the pass to the job; `logit` counts through the rows of `logits`.
  void Absorb(Job* job, int32_t rows, const model::LogitShard& logits, int32_t* logit);
  void ExpandNode(Job* job, int node, absl::Span<const float> logits);
  absl::Span<const float> Noise(Job* job, int32_t position);
  bool Done(const Job& job, base::Nanos now) const;
  void Finish(Job* job, base::Nanos now);
  void Supersede(const SessionKey& key);
  schemas::DraftReply ReplyTo(const schemas::DraftRequest& request,
                              schemas::DraftStatus status) const;

  DraftEngineOptions options_;
  std::unique_ptr<model::RankModel> model_;
  Reply reply_;
  SessionTable sessions_;
  std::vector<std::unique_ptr<Job>> jobs_;  // oldest first
  std::vector<model::KvMove> moves_;        // before the next pass
  std::vector<float> masked_;               // scratch: filtered logits
  bool draining_ = false;
  uint64_t nodes_drafted_ = 0;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_DRAFT_ENGINE_H_
