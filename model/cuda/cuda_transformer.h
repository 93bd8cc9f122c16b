#ifndef SPECFABRIC_MODEL_CUDA_CUDA_TRANSFORMER_H_
#define SPECFABRIC_MODEL_CUDA_CUDA_TRANSFORMER_H_

// The transformer of cpu_transformer.h on one GPU: it rounds at the same places but sums in another
// order. A pass copies the batch to the device once (with pipeline stages, once for each
// micro-batch), enqueues all kernels, and waits once. The logits stay on the device.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/cuda/upload.h"
#include "model/cuda/block_parts.h"
#include "model/cuda/collectives.h"
#include "model/cuda/cuda_logits.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/flash_attention.h"
#include "model/cuda/graph_cache.h"
#include "model/cuda/kept_states.h"
#include "model/cuda/layers.h"
#include "model/cuda/linear.h"
#include "model/cuda/paged_attention.h"
#include "model/cuda/pass_inputs.h"
#include "model/cuda/state_fuser.h"
#include "model/cuda/state_joiner.h"
#include "model/features.h"
#include "model/layer_plans.h"
#include "model/parallel/partition.h"
#include "model/rank_model.h"
#include "model/rope.h"

namespace specfabric::model::cuda {

class CudaTransformer : public RankModel {
 public:
  static absl::StatusOr<std::unique_ptr<CudaTransformer>> Load(const std::string& model_dir,
                                                               const RankOptions& options,
                                                               Communicator* communicator);

  const ModelConfig& config() const override { return config_; }
  const RankOptions& options() const override { return options_; }
  absl::StatusOr<LogitShard> Forward(const Batch& batch) override;
  // Enqueues; the next Forward returns its error.
  void MoveKv(absl::Span<const KvMove> moves) override;
  uint64_t NumericsFingerprint() const override { return fingerprint_; }
  const base::cuda::Device* device() const override { return device_.get(); }
  int64_t KvBlockBytes() const override;
  absl::Status KeepStates(const std::vector<int32_t>& boundaries) override;
  absl::Status CopyStates(absl::Span<const StateCopy> copies) override;
  absl::Status FuseStates(absl::Span<const float> states, int rows, float* fused) override;
  absl::StatusOr<bool> FuseDeviceStates(absl::Span<const uint8_t> states, int rows,
                                        float* fused) override;
  absl::Span<const float> next_states() const override;
  // cuda_transformer_drafter.cc: these, of a block drafter.
  absl::Status WriteContext(const Batch& batch) override;
  absl::StatusOr<LogitShard> ContinueBlock(absl::Span<const BlockNode> nodes,
                                           absl::Span<const float> states) override;
  absl::Span<const float> confidences() const override;

 private:
  CudaTransformer(ModelConfig config, const RankOptions& options, const Partition& partition,
                  Communicator* group, std::unique_ptr<Communicator> stage);
  absl::Status LoadCheckpoint(const std::string& model_dir);
  // cuda_transformer_load.cc: these make up LoadCheckpoint, on all ranks in the same order.
  absl::Status OpenDevice();
  absl::Status MeetRanks();
  absl::Status ReadCheckpoint(const std::string& model_dir);
  absl::Status ReadModel(const std::string& model_dir);
  absl::Status ReadDrafter(const std::string& model_dir);
  void ShareFingerprint();
  absl::Status PrepareProducts();
  absl::Status MakeBuffers();
  absl::Status MakeCache();
  absl::StatusOr<FeatureState> TryFlashAttention(int32_t kv_blocks);
  TreeAttentionConfig AttentionConfig(int32_t kv_blocks) const;
  absl::Status MakeAttention(int32_t kv_blocks);
  absl::StatusOr<FeatureState> TryGraphs();
  absl::Status CapturePass(absl::Status* captured);
  absl::StatusOr<int32_t> BlocksThatFit(const KvSizing& sizing) const;
  absl::Status SizeCache();
  void LogStart(const FeatureState& flash, const FeatureState& graphs) const;
  uint64_t HashNumerics() const;

  absl::StatusOr<PassInputs> CopyInputs(const Batch& batch, base::cuda::Upload* upload);
  absl::Span<const RowView> RowViews();
  absl::Status ReserveRows(int32_t rows, int32_t logit_rows);
  absl::Status PlanAttention(const Batch& batch);
  absl::Status PlanFlash(const Batch& batch);
  absl::Status EnqueueBatch(const Batch& batch);
  absl::Status EnqueueContext(const Batch& batch);
  absl::StatusOr<PassInputs> CopyPadded(const Batch& batch, const PassSize& size);
  absl::Status RunGraph(const Batch& batch);
  absl::Status EnqueueWhole(const PassInputs& inputs, const PassSize& size);
  absl::Status EnqueueStages(const PassInputs& inputs, const PassSize& size);
  std::vector<Batch> MicroBatches(const Batch& batch) const;
  absl::Status EnqueuePipeline(const Batch& batch, const std::vector<Batch>& parts);
  absl::Status EnqueueLastRows(int32_t logit_rows);
  absl::Status EnqueueHandOvers(const std::vector<Batch>& parts);
  absl::Status EnqueuePart(const Batch& part, base::cuda::Upload* upload);
  absl::Status EnqueueEmbeddings(const base::TokenId* tokens, int32_t rows, float* embeddings);
  absl::Status EnqueueHead(int32_t rows);
  absl::Status EnqueueFirstNorm(const PassInputs& inputs, int32_t rows);
  absl::Status EnqueueLayers(const PassInputs& inputs, int32_t rows, int32_t logit_rows);
  absl::Status Attend(const PassInputs& inputs, int32_t layer, int32_t rows);
  absl::Status FeedForward(const DeviceLayer& layer, int32_t rows);
  NormArgs NormOf(const base::cuda::DeviceBuffer& weight, int32_t rows) const;
  absl::Status Norm(const base::cuda::DeviceBuffer& weight, int32_t rows);
  absl::Status SumAddAndNorm(const base::cuda::DeviceBuffer& bias,
                             const base::cuda::DeviceBuffer& weight, int32_t rows);
  absl::Status KeepRows(const PassInputs& inputs, int32_t rows);
  absl::Status KeepResidual(const PassInputs& inputs, int32_t rows);
  LayerCache CacheOf(int32_t layer) const;
  PlaceArgs PlaceOf(const PassInputs& inputs, int32_t layer, int32_t rows) const;
  LogitShard SharedLogits(void* logits, int32_t rows);
  size_t element_bytes() const { return base::Bytes(options_.dtype); }
  int64_t slots() const { return int64_t{options_.kv_blocks} * options_.block_size; }

  ModelConfig config_;   // fixed once the checkpoint is loaded
  RankOptions options_;  // fixed once loaded; until then as asked for
  const Partition partition_;
  const RopeTable rope_;
  Communicator* const group_;                   // among host threads, like the stage's
  const std::unique_ptr<Communicator> stage_;   // null: the group is one stage
  int processes_ = 1;                           // of the group's ranks
  std::unique_ptr<base::cuda::Device> device_;  // destroyed after everything in its memory
  std::unique_ptr<MatrixProducts> products_;
  std::unique_ptr<Collectives> collectives_;
  DeviceWeights weights_;
  std::optional<StateFuser> fuser_;      // of a drafter that reads states
  std::optional<StateJoiner> joiner_;    // of one whose rows join them and hand them on
  std::optional<BlockParts> block_;      // of one that drafts blocks
  base::cuda::DeviceBuffer cache_;       // [layers][keys, values][slots][kv_heads][head_dim]
  std::optional<FlashAttention> flash_;  // nullopt: plain attention
  KeptStates kept_states_;
  uint64_t fingerprint_ = 0;
  absl::Status moved_;          // the status of MoveKv since the last pass
  bool moves_pending_ = false;  // enqueued since then

  // Buffers of a pass, reused by the next.
  LayerPlans plans_;
  std::vector<RowView> host_views_;  // of all plans, where they are several
  std::vector<float> host_cosines_, host_sines_;
  base::cuda::Upload upload_;
  PaddedInputs padded_inputs_;
  GraphCache graphs_;
  base::cuda::PinnedBuffer staged_moves_;
  base::cuda::DeviceBuffer moves_;
  std::optional<CudaLogits> device_logits_;  // once the device is opened
  // [rows][...], as in cpu_transformer.h. residual_ and attended_ also for the rows whose logits
  // are wanted, the only ones that the last layer needs after attention.
  base::cuda::DeviceBuffer residual_, kept_residual_, normed_, qkv_, queries_, attended_,
      kept_attended_;
  base::cuda::DeviceBuffer gate_up_, activated_, projected_, logits_;
  // Pipeline stages: the embeddings, [rows][hidden], the rows received from the previous stage, and
  // the result of the last stage, [logit rows][hidden].
  base::cuda::DeviceBuffer stage_inputs_, incoming_, stage_results_;
  std::vector<base::cuda::Upload> part_uploads_;
  uint64_t row_moves_ = 0;               // how often any of these has been reallocated
  float* stream_rows_ = nullptr;         // the residual stream, in one of the buffers
  const void* attended_rows_ = nullptr;  // attended_ or kept_attended_
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_CUDA_TRANSFORMER_H_
