#ifndef SPECFABRIC_MODEL_CUDA_BLOCK_PARTS_H_
#define SPECFABRIC_MODEL_CUDA_BLOCK_PARTS_H_

// What a block drafter (StateDrafter::block) has beside a transformer's layers: what its layers'
// keys and values of committed positions are products of, and what comes behind its output head.
// Used by the rank's thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/linear.h"
#include "model/cuda/sequential_head.h"

namespace specfabric::model::cuda {

class BlockParts {
 public:
  // The device and the products must outlive it, and so must `config` and `weights`. Errors are
  // those of Checkpoint::Find; ResourceExhausted: it does not fit.
  static absl::StatusOr<BlockParts> Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                         DataType dtype, const DeviceDrafter* weights,
                                         const base::cuda::Device* device,
                                         const MatrixProducts* products);
  // Those that are multiplied.
  void AddMatrices(std::vector<const Matrix*>* matrices) const;
  // hidden -> key heads, value heads. These weights are beside the layer's own, which has the same
  // among others.
  const Matrix& keys_and_values(int32_t layer) const { return keys_and_values_[layer]; }

  // Whether there is room for a pass of so many logit rows, padded; Reserve makes it.
  bool Fits(size_t logit_rows);
  absl::Status Reserve(size_t logit_rows);

  // Enqueues what comes behind the output head: logits().
  absl::Status EnqueueTail(const float* logits, int32_t rows) const;
  // Of the target's vocabulary, [rows][vocabulary], of those of the draft's.
  void* logits(void* of_draft) const { return spreads() ? spread_.As<void>() : of_draft; }

  SequentialHead* head() { return head_ ? &*head_ : nullptr; }  // null: there is none
  const SequentialHead* head() const { return head_ ? &*head_ : nullptr; }

 private:
  BlockParts(const ModelConfig& config, const DeviceDrafter* weights,
             const base::cuda::Device* device)
      : config_(&config), weights_(weights), device_(device) {}
  bool spreads() const { return weights_->places.bytes() > 0; }
  size_t SpreadBytes(size_t logit_rows) const {
    return spreads() ? logit_rows * config_->vocabulary * sizeof(float) : 0;
  }

  const ModelConfig* config_;
  const DeviceDrafter* weights_;
  const base::cuda::Device* device_;
  std::vector<Matrix> keys_and_values_;  // [layers]
  std::optional<SequentialHead> head_;
  base::cuda::DeviceBuffer spread_;  // [logit rows][vocabulary]
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_BLOCK_PARTS_H_
