#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_H_

// Tree attention by split-KV (flash-decoding): the same attention as TreeAttention, by a kernel for
// few rows and long walks. One launch a layer: lists of slots are cut among thread blocks, and the
// last block of a tile folds the results. A row has the same bits in every batch, in a tree, a
// chain or a prefill chunk, on one kind of GPU: tree_attention_split_plan.h says why. The rule
// batch_invariant is so without effect, and `chunk` too.
//
// Of slots that a row does not see, the keys may be anything. The values must be finite where a
// later row of the same causal sequence sees them; others are not read.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "model/batch.h"
#include "model/cuda/tree_attention.h"

namespace specfabric::model::cuda {

// Device memory for the results that are folded, of all attentions of the same type and heads on
// one stream, whatever their batches.
class SplitScratch;
// InvalidArgument: what SplitCapacityOf refuses. ResourceExhausted: no memory. Internal: the
// device's own error.
absl::StatusOr<std::shared_ptr<const SplitScratch>> MakeSplitScratch(
    const TreeAttentionConfig& config);

// Not for two threads at once. Its memory on the device and what is pinned on the host is all taken
// in Create; the device that is current there must be so in every call.
class SplitAttention {
 public:
  // Makes its own scratch if there is none. Errors are those of MakeSplitScratch.
  static absl::StatusOr<SplitAttention> Create(
      const TreeAttentionConfig& config, std::shared_ptr<const SplitScratch> scratch = nullptr);
  SplitAttention(SplitAttention&& other) noexcept;
  SplitAttention& operator=(SplitAttention&& other) noexcept;
  ~SplitAttention();  // what was enqueued must have run

  // Plans a pass and enqueues one copy of the plan; what was enqueued before on the same stream
  // still uses the plan before. Waits only if the device has not yet made the copy of two plans
  // ago. InvalidArgument: what MakeSplitPlan refuses; the plan before is then void.
  absl::Status Plan(const Batch& batch, base::cuda::Stream stream);

  // Enqueues the attention of one layer of the batch last planned, on the stream it was planned on.
  // With fixed_grid a stream capture of this call may be replayed after every later Plan.
  // FailedPrecondition: nothing planned. InvalidArgument: memory that is not aligned.
  absl::Status Run(const LayerAttention& layer, base::cuda::Stream stream);

 private:
  struct State;
  explicit SplitAttention(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_H_
