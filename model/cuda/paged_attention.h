#ifndef SPECFABRIC_MODEL_CUDA_PAGED_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_PAGED_ATTENTION_H_

// The paged KV cache on the device: kernels that write it, move slots, and attend over it. The
// attention here takes any head size and both types and is the reference for faster kernels. A
// layer's keys, and its values, are [slots][kv_heads][head_dim]. Pointers are to device memory.
// Functions enqueue; for their status see base/cuda/launch.h.

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

// Takes the product qkv, [rows][heads + 2 kv_heads][head_dim]: adds the bias, normalises queries
// and keys per head, rotates them (rope.h), scales the queries, and writes keys and values to the
// rows' slots, if they have one.
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
  // If not null, the queries are written here instead, in the cache's type and not scaled.
  void* rounded_queries = nullptr;
};
absl::Status EnqueuePlace(const PlaceArgs& args, base::cuda::Stream stream);
// The same bits, by a kernel without wide loads, which EnqueuePlace falls back to for heads that
// are not of 64, 128 or 256 values and for memory that is not aligned to 16 bytes.
absl::Status EnqueuePlaceReference(const PlaceArgs& args, base::cuda::Stream stream);

// Attention of rows over their visible slots (attention_plan.h), scores and softmax in float32. A
// row's bits depend only on its own list of slots.
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

// Copies slots to other slots, in order, in `planes` consecutive arrays of [slots][width]: all keys
// and values of a rank.
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
