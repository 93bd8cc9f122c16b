#ifndef SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_

// Tree attention (tree_attention.h) for the passes of a model: with memory for the largest batch so
// far, which grows with them.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/batch.h"
#include "model/cuda/device.h"
#include "model/cuda/tree_attention.h"

namespace specfabric::model::cuda {

class FlashAttention {
 public:
  // Of `config` the limits of a batch are not read. InvalidArgument: there is no kernel for such
  // heads.
  static absl::StatusOr<FlashAttention> Create(const TreeAttentionConfig& config);

  // TreeAttention::Plan on the device's stream; if the batch is larger than all before, after what
  // was enqueued there. Errors are those of TreeAttention.
  absl::Status Plan(const Device& device, const Batch& batch);
  // TreeAttention::Run, of the batch last planned.
  absl::Status Run(const LayerAttention& layer, Stream stream);

 private:
  explicit FlashAttention(const TreeAttentionConfig& config) : config_(config) {}

  TreeAttentionConfig config_;  // the limits are those of `attention_`
  std::optional<TreeAttention> attention_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
