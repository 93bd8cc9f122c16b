#ifndef SPECFABRIC_MODEL_CPU_CPU_TRANSFORMER_H_
#define SPECFABRIC_MODEL_CPU_CPU_TRANSFORMER_H_

// A dense decoder-only transformer of the Llama family on one CPU rank. The residual stream is
// float32 for both dtypes; the dtype applies to weights, inputs of matrix products and the KV
// cache.
//
// With several pipeline stages each stage runs its layers and passes the residual stream on. All
// ranks compute the embedding, and all multiply the last stage's result by their part of the output
// head. A pass of many rows is split into micro-batches, so that the stages work at the same time.
// A pass of few rows is not split: its time goes into reading the weights, which every micro-batch
// would read again.
//
// A drafter that reads hidden states is such a transformer too, on one rank, with parts of its own
// (cpu_drafter.h).

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/cpu/attention.h"
#include "model/cpu/cpu_drafter.h"
#include "model/cpu/kept_states.h"
#include "model/cpu/kv_cache.h"
#include "model/cpu/thread_pool.h"
#include "model/cpu/weights.h"
#include "model/layer_plans.h"
#include "model/parallel/partition.h"
#include "model/rank_model.h"
#include "model/rope.h"

namespace specfabric::model {

class CpuTransformer : public RankModel {
 public:
  static absl::StatusOr<std::unique_ptr<CpuTransformer>> Load(const std::string& model_dir,
                                                              const RankOptions& options,
                                                              Communicator* communicator);

  const ModelConfig& config() const override { return config_; }
  const RankOptions& options() const override { return options_; }
  absl::StatusOr<LogitShard> Forward(const Batch& batch) override;
  void MoveKv(absl::Span<const KvMove> moves) override;
  uint64_t NumericsFingerprint() const override { return fingerprint_; }
  int64_t KvBlockBytes() const override { return cache_.shape().block_bytes(); }
  absl::Status KeepStates(const std::vector<int32_t>& boundaries) override;
  absl::Status CopyStates(absl::Span<const StateCopy> copies) override;
  absl::Span<const float> states() const override { return kept_.values(); }
  absl::Status FuseStates(absl::Span<const float> states, int rows, float* fused) override;
  absl::Span<const float> next_states() const override { return next_states_; }
  absl::Status WriteContext(const Batch& batch) override;
  absl::StatusOr<LogitShard> ContinueBlock(absl::Span<const BlockNode> nodes,
                                           absl::Span<const float> states) override;
  absl::Span<const float> confidences() const override {
    return drafter_ && drafter_->head ? drafter_->head->confidences() : absl::Span<const float>();
  }

 private:
  CpuTransformer(ModelConfig config, const RankOptions& options, Communicator* communicator,
                 std::unique_ptr<Communicator> stage, const Partition& partition, KvCache cache);

  absl::StatusOr<std::unique_ptr<Linear>> MakeLinear(const LinearShape& shape,
                                                     const WeightReader& read);
  MatrixFactory<std::unique_ptr<Linear>> LinearFactory();
  absl::Status LoadCheckpoint(const std::string& model_dir);
  absl::Status LoadDrafter(const std::string& model_dir);

  void Embed(const Batch& batch);
  absl::StatusOr<int> RunPipeline(const Batch& batch);
  void HandOver(int rows_out, int rows_in);
  absl::Status PlanAttention(const Batch& batch);
  absl::StatusOr<int> RunPart(const Batch& batch);
  absl::StatusOr<int> RunLayers(const Batch& batch);
  absl::Status Attend(int layer, const Batch& batch);
  void PlaceQueriesAndKeys(int layer, int rows);
  void NormAndRotate(int row, const std::vector<float>& norm, float* head) const;
  void PlaceKeys(int layer, int row, float* keys, const float* values);
  absl::Status FeedForward(const LayerWeights& weights, int rows);
  absl::Status GateApart(const LayerWeights& weights, int rows, float* projected);
  void AddProjected(const std::vector<float>& bias, int rows);
  void Normalise(const std::vector<float>& weight, int rows);
  int KeepRows(const std::vector<int32_t>& rows);

  ModelConfig config_;  // fixed once the checkpoint is loaded
  const RankOptions options_;
  Communicator* const communicator_;  // of the group
  const std::unique_ptr<Communicator> own_stage_;
  Communicator* const stage_;  // of this rank's stage: the group's, where it is the only one
  const Partition partition_;
  const cpu::Kernels& kernels_;
  ThreadPool pool_;
  const RopeTable rope_;
  cpu::Attention attention_;
  cpu::KeptStates kept_;
  std::optional<cpu::CpuDrafter> drafter_;  // of a drafter that reads states
  KvCache cache_;
  EmbeddingTable embedding_;
  ModelWeights weights_;
  uint64_t fingerprint_ = 0;

  // Buffers of one pass, kept between passes so that steady passes allocate nothing. Sizes are this
  // rank's.
  LayerPlans plans_;
  std::vector<float> cosines_, sines_;  // [rows][head_dim / 2]
  std::vector<float> residual_;         // [rows][hidden]
  std::vector<float> stage_inputs_;     // [rows][hidden], the first stage's embeddings
  std::vector<float> incoming_;         // [rows][hidden], from the stage before
  std::vector<float> stage_results_;    // [logit rows][hidden], the last stage's
  std::vector<float> normed_;           // [rows][hidden]
  std::vector<float> qkv_;              // [rows][(heads + 2 kv_heads) * head_dim]
  std::vector<float> queries_;          // [rows][heads][cache stride]
  std::vector<float> attended_;         // [rows][heads][head_dim]
  std::vector<float> gate_up_;          // [rows][2 * intermediate]
  std::vector<float> activated_;        // [rows][intermediate]
  std::vector<float> projected_;        // [rows][hidden]
  std::vector<float> logits_;  // [logit rows][vocabulary], a drafter's [.][draft vocabulary]
  absl::Span<const float> next_states_;  // in normed_ or residual_
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CPU_CPU_TRANSFORMER_H_
