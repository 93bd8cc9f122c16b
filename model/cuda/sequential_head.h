#ifndef SPECFABRIC_MODEL_CUDA_SEQUENTIAL_HEAD_H_
#define SPECFABRIC_MODEL_CUDA_SEQUENTIAL_HEAD_H_

// cpu/sequential_head.h on a GPU. Used by the rank's thread. Logits stay on the device; the states
// that nodes hand on and the confidences come to the host.

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/cuda/upload.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cuda/linear.h"
#include "model/cuda/weight_upload.h"
#include "model/rank_model.h"

namespace specfabric::model::cuda {

class SequentialHead {
 public:
  // Adds the matrices to `upload`. The device and the products must outlive it. places: as
  // SpreadLogitsArgs's; null: the output head scores all ids, in order. Errors are those of
  // Checkpoint::Find and of WeightUpload::Add.
  static absl::StatusOr<SequentialHead> Load(const OpenedDrafter& drafter,
                                             const ModelConfig& config, DataType dtype,
                                             const int32_t* places,
                                             const base::cuda::Device* device,
                                             const MatrixProducts* products, WeightUpload* upload);
  // Those that are multiplied.
  void AddMatrices(std::vector<const Matrix*>* matrices) const;

  // Whether there is room for so many nodes, padded; Reserve makes it.
  bool Fits(size_t nodes);
  absl::Status Reserve(size_t nodes);

  // What a pass has left on the device.
  struct Pass {
    const void* outputs = nullptr;  // [logit rows][hidden], after the last norm
    const float* logits = nullptr;  // [logit rows][draft vocabulary]
  };
  // As RankModel::ContinueBlock; waits for the device. Returns [nodes][vocabulary] on the device.
  // Everything is valid until the next call.
  absl::StatusOr<float*> Continue(absl::Span<const BlockNode> nodes, absl::Span<const float> states,
                                  const Pass& pass);
  absl::Span<const float> states() const {  // [nodes][rank], or empty
    return {fetched_.As<float>(), state_values_};
  }
  absl::Span<const float> confidences() const {  // [nodes], or empty
    return {fetched_.As<float>() + state_values_, confidence_values_};
  }

 private:
  SequentialHead(const ModelConfig& config, DataType dtype, const int32_t* places,
                 const base::cuda::Device* device, const MatrixProducts* products);
  bool recurs() const { return block_.markov == MarkovKind::kRecurrent; }
  int32_t JoinedWidth() const;
  // Corrected logits take the place of their corrections.
  bool in_place() const { return scores_.weights != nullptr && places_ == nullptr; }
  float* Logits() const { return in_place() ? corrections_.As<float>() : logits_.As<float>(); }
  std::array<std::pair<base::cuda::DeviceBuffer*, size_t>, 7> Buffers(size_t nodes);
  absl::Status EnqueueCorrections(int32_t nodes, const void* outputs);
  absl::Status EnqueueNodes(int32_t nodes, const Pass& pass);

  BlockDrafter block_;
  int32_t hidden_, vocabulary_, draft_vocabulary_;
  DataType dtype_;
  const int32_t* places_;
  const base::cuda::Device* device_;
  const MatrixProducts* products_;
  // SequentialWeightsOf. Vectors are float32.
  Matrix tokens_, scores_, joint_;
  base::cuda::DeviceBuffer joint_bias_, confidence_;

  // Of a call.
  std::vector<int32_t> host_rows_;
  std::vector<base::TokenId> host_before_;
  base::cuda::Upload upload_;
  const int32_t* rows_ = nullptr;  // these on the device
  const base::TokenId* before_ = nullptr;
  const float* given_states_ = nullptr;
  base::cuda::DeviceBuffer embeddings_, joined_, projected_, features_, corrections_, logits_;
  base::cuda::DeviceBuffer said_;  // the states, then the confidences
  base::cuda::PinnedBuffer fetched_;
  size_t state_values_ = 0, confidence_values_ = 0;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_SEQUENTIAL_HEAD_H_
