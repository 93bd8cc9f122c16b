#ifndef SPECFABRIC_DRAFT_DRAFT_ENGINE_H_
#define SPECFABRIC_DRAFT_DRAFT_ENGINE_H_

// Grows token trees for many sequences at once: every step of the model takes the pending prefixes
// and the frontiers of all trees together. Single-threaded; the service's engine thread owns it.
//
// How draft tokens are drawn depends on the request's verification method: for `coupled` the best
// scores under the noise that the target will use; for `typical` the likeliest tokens; for methods
// that read draft probabilities they are drawn from these, which go to the target from a slot of
// registered memory. They are written there directly, on the model's device if the slot is in its
// memory.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "draft/noise_cache.h"
#include "draft/session_table.h"
#include "draft/state_inbox.h"
#include "model/rank_model.h"
#include "schemas/messages.h"
#include "speculation/calibrated_chance.h"
#include "speculation/confidence.h"
#include "speculation/draft_probs.h"
#include "speculation/growth.h"
#include "speculation/pass_time.h"
#include "trace/recorder.h"
#include "transport/slot_pool.h"
#include "verification/device_draft_rows.h"

namespace specfabric::draft {

struct DraftEngineOptions {
  SessionTableOptions sessions;
  speculation::GrowthPolicy growth;
  // For verification methods that read the draft's distribution: an expansion configuration, since
  // whether a node is drawn must not depend on what is drawn (verification.md section 3, Trimming).
  speculation::GrowthPolicy sampled_growth;
  // How siblings are drawn for these methods, and from how many of the likeliest tokens; 0: all.
  speculation::SiblingDraw sampled_draw = speculation::SiblingDraw::kWithoutReplacement;
  int32_t top_n = 0;
  int32_t max_step_tokens = 256;        // rows of one forward pass, all sequences together
  AheadOptions ahead;                   // for verification methods that take any tree
  trace::Recorder* recorder = nullptr;  // null: nothing is traced; must outlive the engine
};

// The logits of one pass, of rows that are in host memory.
class PassLogits {
 public:
  // Row r is row r of `shard`, or row place[r] where `place` is given.
  explicit PassLogits(const model::LogitShard& shard, std::vector<int32_t> place = {})
      : shard_(shard), place_(std::move(place)) {}
  absl::Span<const float> row(int32_t row) const {
    return shard_.row(place_.empty() ? row : place_[row]);
  }
  // All logits of the pass, in device memory; only for a model on a device.
  base::cuda::LogitMatrix on_device() const { return shard_.device->matrix(); }

 private:
  model::LogitShard shard_;
  std::vector<int32_t> place_;
};

constexpr int kOutcomeLevels = 17;  // tokens accepted: 0 to 15, and more

// Since start.
struct DraftEngineStats {
  uint64_t nodes_sent = 0;
  uint64_t passes = 0, passes_ahead = 0;
  uint64_t nodes_ahead = 0;  // run before it was known whether they are needed
  uint64_t replies_without_pass = 0;
  uint64_t state_bytes = 0;     // of hidden states that have come,
  uint64_t states = 0;          // and their positions,
  uint64_t invalid_states = 0;  // of these: not finite, or of another shape,
  uint64_t refused_states = 0;  // and those for which there was no room
  // What became of trees, by the tokens accepted.
  std::array<std::array<uint64_t, kOutcomes>, kOutcomeLevels> outcomes = {};
};

// Draft probabilities to be sent beside a reply; none without a lease.
struct OutgoingDraftProbs {
  transport::Lease lease;
  uint32_t bytes = 0;
  uint8_t pool = 0;  // slot pool of the target
};

class DraftEngine {
 public:
  // Called with every reply, on the thread that calls Accept and Step.
  using Reply = std::function<void(uint64_t peer, schemas::DraftReply, OutgoingDraftProbs)>;
  // A slot of DraftProbsSlotBytes(options) for draft probabilities. Unavailable: there is no memory
  // for slots. ResourceExhausted: none is free.
  using AcquireSlot = std::function<absl::StatusOr<transport::Lease>(const transport::Fence&)>;

  // `model` must have a KV cache of options.sessions.kv_blocks blocks. `draft_rows`: of the model's
  // device where the slots are of its memory, else null.
  DraftEngine(const DraftEngineOptions& options, std::unique_ptr<model::RankModel> model,
              std::unique_ptr<verification::DeviceDraftRows> draft_rows, AcquireSlot acquire_slot,
              Reply reply);

  // Bytes of the draft probabilities of the largest tree of sampled_growth.
  static size_t DraftProbsSlotBytes(const DraftEngineOptions& options, int32_t vocabulary);

  // A target of this vocabulary is connected. It may have more tokens than the draft, or fewer,
  // where one tokenizer's ids are padded to different numbers; what only one of the two has is not
  // drafted.
  void TargetUp(uint64_t target_incarnation, int32_t vocabulary) {
    vocabularies_[target_incarnation] = vocabulary;
  }
  // Takes a request, or answers at once why not. A newer request of the same sequence supersedes
  // one that is still growing, which then gets no reply: the target has moved on.
  void Accept(uint64_t peer, const schemas::DraftRequest& request, base::Nanos now);
  // Of a drafter that reads its target's hidden states: those of committed tokens have come.
  // `peer` as in Accept; what does not fit the drafter, or is not finite, is dropped and counted.
  // An error is the model's, as Step's.
  absl::Status AddStates(uint64_t target_incarnation, const ArrivedStates& arrived,
                         base::Nanos now);
  // The sequence has ended: drops its growing tree without a reply, and frees its session.
  void EndSession(const SessionKey& key);
  // The target is not connected any more: the same for all its sequences.
  void TargetGone(uint64_t target_incarnation);
  // From now on every request is answered kDraining; growing trees are finished.
  void SetDraining() { draining_ = true; }

  // No target waits for a tree.
  bool idle() const { return jobs_.empty(); }
  // There are nodes to run ahead of the outcome while no target waits.
  bool can_go_ahead() const { return ahead_ > 0; }
  // Step has something to do: not all trees wait for states of the target.
  bool can_step() const { return (!jobs_.empty() && !starved_) || ahead_ > 0; }
  // At most one forward pass. Where targets wait: for all jobs, with replies for those that are
  // complete or past their time budget; else of nodes ahead of the outcomes, if there are any. An
  // error is the model's; the engine must not be used after it.
  absl::Status Step();

  SessionTable& sessions() { return sessions_; }
  const DraftEngineStats& stats() const { return stats_; }

 private:
  struct Job {
    uint64_t peer = 0;
    schemas::DraftRequest request;
    Session* session = nullptr;
    speculation::TreeGrower grower;
    base::Nanos started = 0;
    speculation::SiblingDraw draw = speculation::SiblingDraw::kCoupledTopK;
    // Where the verification method needs rows: their slot, its shape with as many rows as it
    // takes, and how many are written.
    transport::Lease slot = {};
    speculation::DraftProbsShape shape = {};
    int32_t rows = 0;
    std::vector<int32_t> node_of = {0};  // [nodes of the tree] the session's cache node that it is
    std::vector<int32_t> frontier = {};  // nodes in the batch at hand; empty while prefilling
    int32_t passes = 0;                  // that it took part in
    // Of a parallel draft model: rows of masks behind the prefix in the batch at hand, which give
    // the tokens of as many further levels; and the most that there is a use for.
    int32_t masks = 0, most_masks = 0;
    int32_t first_logit = 0;  // of the pass: the prefix's, then those of the masks
    // Of a block drafter: positions whose keys the pass at hand writes, and whether it holds the
    // block's rows.
    int32_t context_rows = 0;
    bool runs_block = false;

    bool on_device() const {
      return slot && slot.pool()->options().kind == transport::MemoryKind::kCuda;
    }
  };
  // A node whose row is to be made on the device.
  struct DeviceNode {
    Job* job = nullptr;
    int node = 0;
    int32_t logit = 0;   // in the pass
    bool drawn = false;  // in the draw at hand
  };

  static constexpr int kMaskWords = SpeculationCache::kMaskWords;

  // draft_engine_pass.cc: what a pass holds, and what is made of its logits.
  absl::Status StepJobs();
  absl::Status StepAhead();
  // draft_engine_ahead.cc: what is run while no target waits.
  struct AheadShare {
    Session* session = nullptr;
    std::vector<int32_t> nodes = {};  // of its speculation cache, parents first
    // Of a parallel draft model: places in `nodes` of those with masks behind them.
    std::vector<int32_t> roots = {};
  };
  std::vector<AheadShare> ChooseAhead();
  bool RoomAhead(const AheadShare& share);
  void AddMasks(const AheadShare& share, model::Batch* batch);
  void AbsorbAhead(const AheadShare& share, const PassLogits& logits, int32_t* logit);
  void AddRows(Job* job, int32_t budget, model::Batch* batch);
  // draft_engine_block.cc: of a block drafter, the same as AddRows, Absorb and what follows it.
  void AddBlock(Job* job, int32_t budget, model::Batch* batch);
  void AddContext(const Session& session, int32_t rows);
  void AbsorbBlock(Job* job, const PassLogits& logits, int32_t* logit);
  struct BlockNodes {
    std::vector<std::pair<Job*, int32_t>> of;
    std::vector<model::BlockNode> rows;  // [of]
    std::vector<float> states;           // [of][markov_rank] if the head is recurrent
  };
  BlockNodes NextBlockNodes(absl::Span<Job* const> jobs);
  // Drafts the levels of all jobs' blocks, token by token, where the drafter has a head for that.
  absl::Status ContinueBlocks(absl::Span<Job* const> jobs);
  void AddPrefix(Job* job, int32_t rows, int32_t budget, model::Batch* batch);
  // The position at which a model runs the token: a drafter that reads states runs it beside the
  // state of the token before it, at that one's.
  int32_t PositionOf(int32_t token) const { return token - (reads_states() ? 1 : 0); }
  static void NameBlocks(const Session& session, model::Batch* batch);
  // Nodes of the session's speculation cache, which get their slots.
  void AddNodes(Session* session, absl::Span<const int32_t> nodes, model::Batch* batch);
  // Runs the pass. Logits on a device: row i is copied to the host unless stays[i]; `stays` empty:
  // all are.
  absl::StatusOr<PassLogits> Run(const model::Batch& batch, const std::vector<bool>& stays = {});
  // The same of the logits that a model has returned.
  static absl::StatusOr<PassLogits> Fetch(model::LogitShard logits, const std::vector<bool>& stays);
  // What a parallel draft model's rows say of the levels from `cache_node` on; `rows` of `logits`,
  // the node's own first.
  SpeculationCache::Levels LevelsFrom(Session* session, int cache_node, const PassLogits& logits,
                                      absl::Span<const int32_t> rows);
  // Applies the pass to the job; `logit` counts through the rows of `logits`.
  void Absorb(Job* job, int32_t rows, const PassLogits& logits, int32_t* logit);
  void AbsorbPrefix(Job* job, const PassLogits& logits);
  // Of a model whose candidates of a level are the same on all paths: those of the prefix's row and
  // the masks behind it.
  void AbsorbLevels(Job* job, const PassLogits& logits);
  void ExpandNode(Job* job, int node, const PassLogits& logits, int32_t logit);
  // Draws for the nodes of the levels that the prefix and the masks behind it give, whose rows do
  // not depend on the path. On a device, one level at a time: true if there are nodes to draw for.
  bool DrawLevels(Job* job, const PassLogits& logits);
  // Expands the nodes that the session's speculation cache knows; those that need a pass stay in
  // the frontier.
  void ExpandKnown(Job* job);
  void Expand(Job* job, int node, absl::Span<const Candidate> candidates);
  int CacheNodeOf(Job* job, int node);
  // Sets the candidates after a cache node and their estimated probabilities.
  void SetNodeCandidates(Session* session, int cache_node, absl::Span<const float> logits);
  void ApplySaid(const Session& session, float said, std::vector<Candidate>* candidates) const;
  // The candidates of a node of the job's tree, as far as the speculation cache knows them.
  absl::Span<const Candidate> KnownCandidates(Job* job, int node);
  // The best scores under the noise that verification will use; without noise the likeliest tokens.
  // `level`: predicted with so many masks between.
  std::vector<Candidate> BestTokens(Session* session, int32_t position, int width, int level,
                                    absl::Span<const float> logits);
  // Makes a row of draft probabilities of the target's vocabulary.
  void MakeDraftProbs(const Job& job, absl::Span<const float> logits, absl::Span<uint16_t> probs);
  // Drawn from the row of draft probabilities that this adds to the job's slot.
  std::vector<Candidate> DrawnTokens(Job* job, int node, absl::Span<const float> logits);
  sampling::DrawSite SiteOf(const Job& job, int node) const;
  // Expands the nodes whose rows are made on the device, in slots there, all jobs' at once.
  absl::Status DrawOnDevice(const PassLogits& logits);
  // The same of all levels of a parallel model.
  absl::Status DrawAllOnDevice(absl::Span<Job* const> jobs, const PassLogits& logits);
  // The next draws of `on_device_`, and their slots; drops nodes that need none.
  std::vector<verification::RowDraw> NextDraws();
  void ExpandDrawn(absl::Span<const verification::DrawnRow> drawn);

  // Counts the outcome of the tree last sent to a session, when its next request arrives.
  void CountOutcome(const Applied& applied, int32_t levels);
  // Learns from what the target chose where this worker had proposed tokens.
  void LearnFrom(const schemas::DraftRequest& request);
  // Of a parallel draft model the level counts: what it predicts farther off it knows less well.
  speculation::Confidence& confidence(speculation::VerificationMethod verification, int level) {
    const int of = parallel() ? std::min(level, kConfidenceLevels - 1) : 0;
    return confidence_[static_cast<size_t>(verification)][of];
  }
  bool parallel() const { return mask_token_ != base::kNoToken; }
  // Null: not a block drafter.
  const model::BlockDrafter* block() const {
    const std::optional<model::StateDrafter>& states = model_->config().states;
    return states && states->block ? &*states->block : nullptr;
  }
  bool recurs() const {
    return block() != nullptr && block()->markov == model::MarkovKind::kRecurrent;
  }
  // The candidates of a level are the same on all paths.
  bool shares_levels() const { return parallel() && !continues_blocks(); }
  // Of a block drafter, whose head corrects the rows of a pass; these are of no use by themselves.
  bool continues_blocks() const { return block() != nullptr && block()->sequential(); }
  bool reads_states() const { return model_->config().states.has_value(); }
  // draft_engine_states.cc: the committed tokens from kv_len on whose states are there. Where those
  // before them are lost, the session starts cold.
  int32_t RowsWithStates(Session* session);
  // fused_ = the states of `count` positions, fused. False: some are not finite.
  absl::StatusOr<bool> Fuse(const transport::KeptTensor& tensor, int count);
  void AddState(absl::Span<const float> state, model::Batch* batch);
  void KeepState(Session* session, int cache_node, int32_t logit);
  static uint64_t TargetOf(const Job& job) { return job.session->key.target_incarnation; }
  static float CostPerSecond(const Job& job) {
    return speculation::UsesDraftProbs(job.request.verification) ? 0.0f
                                                                 : job.request.cost_per_second;
  }
  bool GoesAhead(const schemas::DraftRequest& request) const;
  void StopUnprofitableGrowth();
  // The job is over, whatever came of it.
  void Leave(Job* job, bool sent);
  absl::Status PrepareDraftProbs(const schemas::DraftRequest& request, Job* job);
  bool Done(const Job& job, base::Nanos now) const;
  void FinishDone(base::Nanos now);
  void Finish(Job* job, base::Nanos now);
  void Supersede(const SessionKey& key);
  schemas::DraftReply ReplyTo(const schemas::DraftRequest& request,
                              schemas::DraftStatus status) const;

  DraftEngineOptions options_;
  std::unique_ptr<model::RankModel> model_;
  std::unique_ptr<verification::DeviceDraftRows> draft_rows_;  // null: none are made on a device
  AcquireSlot acquire_slot_;
  Reply reply_;
  SessionTable sessions_;
  NoiseCache noise_;
  std::vector<std::unique_ptr<Job>> jobs_;                          // oldest first
  absl::flat_hash_map<uint64_t, speculation::GrowthRound> rounds_;  // by target incarnation
  absl::flat_hash_map<uint64_t, int32_t> vocabularies_;             // likewise
  std::vector<model::KvMove> moves_;                                // before the next pass
  static constexpr int kConfidenceLevels = 16;
  std::array<std::array<speculation::Confidence, kConfidenceLevels>,
             speculation::kVerificationMethods>
      confidence_;
  std::array<speculation::CalibratedChance, speculation::kVerificationMethods> calibrated_;
  model::Batch context_;               // of a block drafter: positions whose keys the pass writes
  std::vector<float> masked_;          // scratch: filtered logits
  std::vector<float> states_, fused_;  // scratch: those that have come
  std::vector<uint16_t> cut_probs_;    // scratch: the whole row from which a truncated one is made
  std::vector<DeviceNode> on_device_;  // of the pass at hand, each job's in the order of its rows
  speculation::PassTime pass_time_;    // of a level
  bool draining_ = false;
  bool starved_ = false;            // all jobs wait for states
  const base::TokenId mask_token_;  // kNoToken: the model predicts one token a row
  int32_t ahead_ = 0;               // sessions with a plan to go ahead
  double acceptance_ = 0;  // recent acceptance rate of a draft token whose parent was accepted
  DraftEngineStats stats_;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_DRAFT_ENGINE_H_
