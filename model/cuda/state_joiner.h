#ifndef SPECFABRIC_MODEL_CUDA_STATE_JOINER_H_
#define SPECFABRIC_MODEL_CUDA_STATE_JOINER_H_

// cpu/eagle3.h and cpu/mtp.h on a GPU: what drafters whose rows each join a state and hand one on
// have before and behind their layers that other models do not have. Used by the rank's thread. The
// states that rows hand on are on the host: they are a row's hidden size, of as many rows as a tree
// has nodes.

#include <array>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/checkpoint/config.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/layers.h"
#include "model/cuda/linear.h"

namespace specfabric::model::cuda {

class StateJoiner {
 public:
  // All of it must outlive it. `weights`: those of a drafter, with `drafter`.
  StateJoiner(const ModelConfig* config, DataType dtype, const DeviceWeights* weights,
              const base::cuda::Device* device, const MatrixProducts* products)
      : config_(*config),
        dtype_(dtype),
        weights_(*weights),
        device_(*device),
        products_(*products) {}

  // Whether there is room for a pass of so many rows, padded; Reserve makes it.
  bool Fits(size_t rows, size_t logit_rows);
  absl::Status Reserve(size_t rows, size_t logit_rows);

  // Enqueues: joined(), [rows][2 * hidden]: the embeddings, normed, and the fused states, normed;
  // the first layer's attention reads it in EAGLE-3. residual, [rows][hidden]: the embeddings; what
  // the residual stream begins as takes their place.
  absl::Status EnqueueJoin(const float* states, int32_t rows, float* residual) const;
  const void* joined() const { return joined_.As<void>(); }

  // Enqueues what comes behind the head: logits() and the states that rows hand on. `norm`: the
  // last norm of these rows, whose result is computed again if it is handed on.
  absl::Status EnqueueTail(const float* logits, const NormArgs& norm) const;
  // Of the target's vocabulary, [rows][vocabulary], of those of the draft's.
  void* logits(void* of_draft) const { return spreads() ? spread_.As<void>() : of_draft; }
  // Enqueues their copy to the host. residual: of the rows whose logits are wanted.
  absl::Status EnqueueNextStates(const float* residual, int32_t rows);
  // [rows][hidden], once the device has finished.
  absl::Span<const float> next_states() const {
    return {fetched_next_.As<float>(), next_rows_ * static_cast<size_t>(config_.hidden)};
  }

 private:
  std::array<std::pair<base::cuda::DeviceBuffer*, size_t>, 3> Buffers(size_t rows,
                                                                      size_t logit_rows);
  bool spreads() const { return weights_.drafter->places.bytes() > 0; }

  const ModelConfig& config_;
  const DataType dtype_;
  const DeviceWeights& weights_;
  const base::cuda::Device& device_;
  const MatrixProducts& products_;
  // Of a pass.
  base::cuda::DeviceBuffer joined_;  // [rows][2 * hidden]
  base::cuda::DeviceBuffer spread_;  // [logit rows][vocabulary]
  base::cuda::DeviceBuffer normed_;  // [logit rows][hidden], where it is handed on
  base::cuda::PinnedBuffer fetched_next_;
  size_t next_rows_ = 0;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_STATE_JOINER_H_
