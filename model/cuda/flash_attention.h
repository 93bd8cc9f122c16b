#ifndef SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
#define SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_

// Tree attention for the passes of a model, with memory that grows to the largest batch so far. For
// passes that are captured as graphs, launches and memory are the same for all passes of one size.
//
// Two kernels: split-KV attention (tree_attention_split.h), which gives a row the same bits in
// every batch, serves all passes of a batch-invariant model and all captured ones. Otherwise
// FlashInfer's (tree_attention.h) serves long prefills.
//
// Rows of a block (BatchSequence::block) are the nodes of a tree that all see each other.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "model/batch.h"
#include "model/cuda/tree_attention.h"
#include "model/cuda/tree_attention_split.h"

namespace specfabric::model::cuda {

class FlashAttention {
 public:
  // The limits of a batch in `config` are ignored. Takes up to 64 MiB on the current device, and
  // more as batches grow. InvalidArgument: there is no kernel for these heads. ResourceExhausted:
  // no memory.
  static absl::StatusOr<FlashAttention> Create(const TreeAttentionConfig& config);

  // Plans a pass on the device's stream. If the batch is larger than all before, it first waits for
  // the work enqueued there. Errors are those of TreeAttention and SplitAttention.
  absl::Status Plan(const base::cuda::Device& device, const Batch& batch);
  // The same for a graph of passes of `rows` rows; the batch has at most as many. What Run then
  // enqueues is the same for all such passes until moves() changes.
  absl::Status PlanPadded(const base::cuda::Device& device, const Batch& batch, int32_t rows);
  // How often a graph's launches or memory have changed.
  uint64_t moves() const { return moves_; }
  // Enqueues the attention of one layer of the batch last planned.
  absl::Status Run(const LayerAttention& layer, base::cuda::Stream stream);

 private:
  template <typename Attention>
  struct Sized {
    TreeAttentionConfig config;  // with the limits of `attention`
    std::optional<Attention> attention = std::nullopt;
  };
  FlashAttention(const TreeAttentionConfig& config, std::shared_ptr<const SplitScratch> scratch)
      : scratch_(std::move(scratch)), split_{config}, prefill_{config} {}
  absl::Status Make(Sized<SplitAttention>* sized) const;
  absl::Status Make(Sized<TreeAttention>* sized) const;
  // Makes room for the batch. True: the old memory was freed.
  template <typename Attention>
  absl::StatusOr<bool> Reserve(const base::cuda::Device& device, const Batch& batch,
                               Sized<Attention>* sized) const;
  template <typename Attention>
  absl::Status PlanIn(const base::cuda::Device& device, const Batch& batch,
                      Sized<Attention>* sized);
  bool IsLongPrefill(const Batch& batch) const;
  // A copy of what plans read of the batch, with masks for its blocks of rows.
  const Batch& WithMasks(const Batch& batch);

  std::shared_ptr<const SplitScratch> scratch_;
  Sized<SplitAttention> split_;
  Sized<TreeAttention> prefill_;
  std::map<int32_t, Sized<SplitAttention>> padded_;  // by rows
  uint64_t moves_ = 0;
  Batch masked_;  // WithMasks's
  // The one that planned last, if it could.
  std::variant<std::monostate, SplitAttention*, TreeAttention*> planned_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_FLASH_ATTENTION_H_
