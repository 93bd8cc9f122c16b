#ifndef SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_

// Tree attention (tree_attention.h) for the passes of a model: with memory for the largest batch so
// far, which grows with them; and, for passes that are captured as graphs, with launches and memory
// that are the same for all passes of one size.

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "model/batch.h"
#include "model/cuda/tree_attention.h"

namespace specfabric::model::cuda {

class FlashAttention {
 public:
  // Of `config` the limits of a batch are not read. InvalidArgument: there is no kernel for such
  // heads.
  static absl::StatusOr<FlashAttention> Create(const TreeAttentionConfig& config);

  // TreeAttention::Plan on the device's stream; if the batch is larger than all before, after what
  // was enqueued there. Errors are those of TreeAttention.
  absl::Status Plan(const base::cuda::Device& device, const Batch& batch);
  // The same for a graph of passes of `rows` rows, of which the batch has at most as many: what Run
  // enqueues then is the same for all of them until moves() changes.
  absl::Status PlanPadded(const base::cuda::Device& device, const Batch& batch, int32_t rows);
  // How often a graph's launches or memory have changed.
  uint64_t moves() const { return moves_; }
  // TreeAttention::Run, of the batch last planned.
  absl::Status Run(const LayerAttention& layer, base::cuda::Stream stream);

 private:
  struct Sized {
    TreeAttentionConfig config;  // with the limits of `attention`
    std::optional<TreeAttention> attention = std::nullopt;
  };
  explicit FlashAttention(const TreeAttentionConfig& config) : plain_{config} {}
  // Makes room for the batch. True: what there was has gone.
  static absl::StatusOr<bool> Reserve(const base::cuda::Device& device, const Batch& batch,
                                      Sized* sized);

  Sized plain_;
  std::map<int32_t, Sized> padded_;  // by rows
  uint64_t moves_ = 0;
  TreeAttention* planned_ = nullptr;  // one of these
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
