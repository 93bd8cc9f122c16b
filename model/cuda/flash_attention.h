#ifndef SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_

// Tree attention (tree_attention.h) for the passes of a model, with memory that grows to the
// largest batch so far. For passes that are captured as graphs, launches and memory are the same
// for all passes of one size.

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
  // The limits of a batch in `config` are ignored. InvalidArgument: there is no kernel for these
  // heads.
  static absl::StatusOr<FlashAttention> Create(const TreeAttentionConfig& config);

  // TreeAttention::Plan on the device's stream. If the batch is larger than all before, it first
  // waits for the work enqueued there. Errors are those of TreeAttention.
  absl::Status Plan(const base::cuda::Device& device, const Batch& batch);
  // The same for a graph of passes of `rows` rows; the batch has at most as many. What Run then
  // enqueues is the same for all such passes until moves() changes.
  absl::Status PlanPadded(const base::cuda::Device& device, const Batch& batch, int32_t rows);
  // How often a graph's launches or memory have changed.
  uint64_t moves() const { return moves_; }
  // TreeAttention::Run for the batch last planned.
  absl::Status Run(const LayerAttention& layer, base::cuda::Stream stream);

 private:
  struct Sized {
    TreeAttentionConfig config;  // with the limits of `attention`
    std::optional<TreeAttention> attention = std::nullopt;
  };
  explicit FlashAttention(const TreeAttentionConfig& config) : plain_{config} {}
  // Makes room for the batch. True: the old memory was freed.
  static absl::StatusOr<bool> Reserve(const base::cuda::Device& device, const Batch& batch,
                                      Sized* sized);

  Sized plain_;
  std::map<int32_t, Sized> padded_;  // by rows
  uint64_t moves_ = 0;
  TreeAttention* planned_ = nullptr;  // one of these
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
