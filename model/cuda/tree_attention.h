#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_H_

// Attention of all rows of a batch (prefill chunks, single tokens and trees together) over one
// layer of a paged cache on the device: grouped queries, scores and softmax in float32, masks of
// batch.h. tree_attention_plan.h says how the work is cut and when a row's bits depend on nothing
// but itself.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "model/batch.h"
#include "model/cuda/tree_attention_kernel.h"
#include "model/cuda/tree_attention_plan.h"

namespace specfabric::model::cuda {

struct TreeAttentionConfig {
  TreeAttentionRules rules;                       // processors 0: as many as the current device has
  AttentionType type = AttentionType::kBFloat16;  // of queries, keys, values and out
  float scale = 0;                                // of scores; mostly head_dim^-1/2
};

// One layer; all device memory of another's, aligned to 16 bytes.
struct LayerAttention {
  const void* queries = nullptr;  // [rows][heads][head_dim], rotated
  // [slots][kv_heads][head_dim], the slots of block b being b block_size and on. What lies in the
  // first kv_len + tree_first + row_count slots of a sequence must be finite, seen or not.
  const void* keys = nullptr;
  const void* values = nullptr;
  void* out = nullptr;  // [rows][heads][head_dim]
};

// Not for two threads at once. Its memory on the device and what is pinned on the host is all taken
// in Create; the device that is current there must be so in every call.
class TreeAttention {
 public:
  // InvalidArgument: what CapacityOf refuses. ResourceExhausted: no memory. Internal: the device's
  // own error.
  static absl::StatusOr<TreeAttention> Create(const TreeAttentionConfig& config);
  TreeAttention(TreeAttention&& other) noexcept;
  TreeAttention& operator=(TreeAttention&& other) noexcept;
  ~TreeAttention();  // what was enqueued must have run

  // Plans a pass and enqueues one copy of the plan; what was enqueued before on the same stream
  // still uses the plan before. Waits only if the device has not yet made the copy of two plans
  // ago. InvalidArgument: what MakeTreeAttentionPlan refuses; the plan before is then void.
  absl::Status Plan(const Batch& batch, base::cuda::Stream stream);

  // Enqueues the attention of one layer of the batch last planned, on the stream it was planned on.
  // With fixed_grid a stream capture of this call may be replayed after every later Plan.
  // FailedPrecondition: nothing planned. InvalidArgument: memory that is not aligned.
  absl::Status Run(const LayerAttention& layer, base::cuda::Stream stream);

 private:
  struct State;
  explicit TreeAttention(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_H_
