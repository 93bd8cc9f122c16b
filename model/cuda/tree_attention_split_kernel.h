#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_KERNEL_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_KERNEL_H_

// What tree_attention_split.cc asks of the kernel.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "model/cuda/tree_attention_kernel.h"

namespace specfabric::model::cuda {

// One layer. All pointers are to device memory, queries, keys, values and out aligned to 16 bytes.
struct SplitCall {
  const void* queries = nullptr;  // [rows][heads][head_dim]
  const void* keys = nullptr;     // [slots][kv_heads][head_dim]
  const void* values = nullptr;
  void* out = nullptr;           // [rows][heads][head_dim]
  float* partials = nullptr;     // [partial rows][heads][head_dim], values not yet over their sum
  float* stats = nullptr;        // [partial rows][heads][2]: the highest score, the sum
  uint32_t* counters = nullptr;  // [counters][kv_heads], zeros between launches
  const std::byte* plan = nullptr;  // SplitHeader
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 0;
  float scale_log2 = 0;  // of scores, to units of log2(e); positive
};

// Which kernel, for which plan: of SplitPlan::tiles.
struct SplitForm {
  AttentionType type = AttentionType::kBFloat16;
  int32_t head_dim = 0;  // 64 or 128
  int32_t tiles = 0;     // 1, 2 or 4
};

// Loads the kernels of a type and head size to the current device, so that no launch has to, nor a
// stream capture. Internal: the device's own error, as where it has no machine code for it.
absl::Status PrepareSplitAttention(AttentionType type, int32_t head_dim);

// Enqueues the kernel with `items` blocks for each KV head, which take the plan's items in turn. It
// may overlap with the kernel before it. Internal: the device's own error.
absl::Status EnqueueSplitAttention(const SplitForm& form, const SplitCall& call, int32_t items,
                                   base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_KERNEL_H_
