#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_KERNEL_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_KERNEL_H_

// What tree_attention.cc asks of the kernels; one file for each instance, because FlashInfer's
// templates take long to compile.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "model/cuda/tree_attention_plan.h"

namespace specfabric::model::cuda {

enum class AttentionType : uint8_t { kFloat16, kBFloat16 };

// One wave of one layer. All pointers are to device memory, queries, keys, values and out aligned
// to 16 bytes.
struct TreeAttentionCall {
  const void* queries = nullptr;  // [rows][heads][head_dim]
  const void* keys = nullptr;     // [blocks][block_size][kv_heads][head_dim]
  const void* values = nullptr;
  void* out = nullptr;        // [rows][heads][head_dim]
  float* partials = nullptr;  // [partial rows][heads][head_dim]
  float* weights = nullptr;   // [partial rows][heads], log2 of the sum of exponentials
  std::byte* plan = nullptr;  // packed as the layout says
  const PlanLayout* layout = nullptr;
  AttentionWave wave;
  const uint32_t* row_count = nullptr;  // read by the merge instead of wave.rows; may be null
  int32_t tile_q = 0;
  bool partial = false;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 0;
  int32_t processors = 0;
  float scale = 0;
};

// Loads the kernels to the current device, so that no launch has to, nor a stream capture.
// Internal: the device's own error, as where it has no machine code for it.
template <AttentionType kType, int kHeadDim>
absl::Status PrepareTreeAttention();

// Enqueues the wave and, if it is partial, its merge. Internal: the device's own error.
template <AttentionType kType, int kHeadDim>
absl::Status EnqueueTreeAttention(const TreeAttentionCall& call, base::cuda::Stream stream);

extern template absl::Status PrepareTreeAttention<AttentionType::kFloat16, 64>();
extern template absl::Status EnqueueTreeAttention<AttentionType::kFloat16, 64>(
    const TreeAttentionCall& call, base::cuda::Stream stream);
extern template absl::Status PrepareTreeAttention<AttentionType::kFloat16, 128>();
extern template absl::Status EnqueueTreeAttention<AttentionType::kFloat16, 128>(
    const TreeAttentionCall& call, base::cuda::Stream stream);
extern template absl::Status PrepareTreeAttention<AttentionType::kBFloat16, 64>();
extern template absl::Status EnqueueTreeAttention<AttentionType::kBFloat16, 64>(
    const TreeAttentionCall& call, base::cuda::Stream stream);
extern template absl::Status PrepareTreeAttention<AttentionType::kBFloat16, 128>();
extern template absl::Status EnqueueTreeAttention<AttentionType::kBFloat16, 128>(
    const TreeAttentionCall& call, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_KERNEL_H_
