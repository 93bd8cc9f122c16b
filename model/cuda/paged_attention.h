#ifndef SPECFABRIC_MODEL_CUDA_PAGED_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_PAGED_ATTENTION_H_

// The paged KV cache on the device: writing, moving, and plain attention over it, which takes any
// head size and both types and is the reference of faster kernels. A layer's keys, and its values,
// are [slots][kv_heads][head_dim]. Pointers are device memory; functions enqueue; the status is
// launch.h's.

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "model/attention_plan.h"
#include "model/batch.h"
#include "model/checkpoint/config.h"

namespace specfabric::model::cuda {

constexpr int32_t kMaxHeadDim = 256;

// One rank's heads and one layer's cache.
struct LayerCache {
  DataType type = DataType::kBFloat16;
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  void* keys = nullptr;
  void* values = nullptr;
};

// From the product qkv, [rows][heads + 2 kv_heads][head_dim]: adds the bias, norms queries and keys
// by head, rotates them (rope.h), scales queries, and writes keys and values to the rows' slots,
// where they have one.
struct PlaceArgs {
  LayerCache cache;
  int32_t rows = 0;
  const float* qkv = nullptr;
  const float* bias = nullptr;        // [(heads + 2 kv_heads) * head_dim]; null: none
  const float* query_norm = nullptr;  // [head_dim]; null: none
  const float* key_norm = nullptr;
  float epsilon = 0;
  float scale = 1;                 // of queries
  const float* cosines = nullptr;  // [rows][head_dim / 2]
  const float* sines = nullptr;
  const RowView* views = nullptr;  // [rows]
  float* queries = nullptr;        // [rows][heads][head_dim]
  // The same of the cache's type, and not scaled; not null: instead of `queries`.
  void* rounded_queries = nullptr;
};
absl::Status EnqueuePlace(const PlaceArgs& args, base::cuda::Stream stream);

// Attention of rows over the slots they see (attention_plan.h), scores and softmax in float32. A
// row's bits depend on its own list of slots alone.
struct AttendArgs {
  LayerCache cache;
  int32_t rows = 0;
  const RowView* views = nullptr;  // [rows]
  const int32_t* slots = nullptr;  // AttentionPlan::slots
  const int32_t* extra = nullptr;  // AttentionPlan::extra
  const float* queries = nullptr;  // [rows][heads][head_dim]
  void* out = nullptr;             // [rows][heads][head_dim], of the cache's type
};
absl::Status EnqueueAttend(const AttendArgs& args, base::cuda::Stream stream);

// Copies slots onto others, in order, in `planes` arrays of [slots][width] that lie one behind the
// other: all keys and values of a rank.
struct MoveArgs {
  DataType type = DataType::kBFloat16;
  void* cache = nullptr;
  int64_t slots = 0;
  int32_t planes = 0, width = 0;
  const KvMove* moves = nullptr;  // [count]
  int32_t count = 0;
};
absl::Status EnqueueMove(const MoveArgs& args, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PAGED_ATTENTION_H_
