#ifndef SPECFABRIC_MODEL_CUDA_STATE_FUSER_H_
#define SPECFABRIC_MODEL_CUDA_STATE_FUSER_H_

// cpu/state_fuser.h on a GPU: the layer "fc" of a drafter that reads hidden states, with the norms
// around it, or the one norm that an MTP drafter has. Used by the rank's thread. The fused states
// are on the host: they are a row's hidden size, of as many rows as a prompt or a tree's accepted
// path has tokens.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/cuda/upload.h"
#include "model/checkpoint/config.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/linear.h"

namespace specfabric::model::cuda {

// Hidden states of `rows` positions, [rows][layers][target_hidden], of the given type.
struct StateRows {
  DataType type = DataType::kFloat32;
  absl::Span<const uint8_t> bytes;
  bool on_device = false;
  int32_t rows = 0;
};

class StateFuser {
 public:
  // All of it must outlive it.
  StateFuser(const ModelConfig* config, DataType dtype, const DeviceDrafter* weights,
             const base::cuda::Device* device, const MatrixProducts* products)
      : config_(*config),
        dtype_(dtype),
        weights_(*weights),
        device_(*device),
        products_(*products) {}

  // As RankModel::FuseStates. False: some states are not finite.
  absl::StatusOr<bool> Fuse(const StateRows& states, float* fused);

 private:
  bool has_fc() const { return weights_.fuse.weights != nullptr; }
  absl::Status EnqueueFuse(const StateRows& states);

  const ModelConfig& config_;
  const DataType dtype_;
  const DeviceDrafter& weights_;
  const base::cuda::Device& device_;
  const MatrixProducts& products_;
  base::cuda::Upload upload_;
  base::cuda::DeviceBuffer inputs_;  // of fc, [rows][layers * target_hidden]
  // A word that is not 0 if some state is not finite, then from kFusedPlace on [rows][hidden].
  base::cuda::DeviceBuffer fused_;
  base::cuda::PinnedBuffer fetched_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_STATE_FUSER_H_
