#ifndef SPECFABRIC_MODEL_CUDA_DEVICE_WEIGHTS_H_
#define SPECFABRIC_MODEL_CUDA_DEVICE_WEIGHTS_H_

// One rank's shard of a checkpoint in the memory of its GPU (cpu/weights.h says which tensors are
// split). Vectors are float32; those that the model does not have are empty.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/checkpoint/safetensors.h"
#include "model/cuda/linear.h"
#include "model/parallel/partition.h"

namespace specfabric::model::cuda {

struct DeviceLayer {
  base::cuda::DeviceBuffer attention_norm = {}, mlp_norm = {};
  base::cuda::DeviceBuffer qkv_bias = {}, query_norm = {}, key_norm = {};
  base::cuda::DeviceBuffer output_bias = {}, gate_up_bias = {}, down_bias = {};
  Matrix qkv, output, gate_up, down;
};

// Of a drafter whose rows read states (FuseWeightsOf, MtpWeightsOf).
struct DeviceDrafter {
  Matrix fuse;  // null: of an MTP drafter
  base::cuda::DeviceBuffer fuse_norm;
  float fuse_epsilon = 0;
  std::vector<float> fuse_bias;  // on the host
  // The norm of fused states. An MTP drafter has one of embeddings too, and the projection of both;
  // in EAGLE-3 the first layer's attention has them.
  base::cuda::DeviceBuffer state_norm, token_norm = {};
  Matrix projection = {};
  // [vocabulary], int32: where the head has the score of each of the target's ids, or -1. Empty if
  // it has all, in order.
  base::cuda::DeviceBuffer places;
};

struct DeviceWeights {
  Matrix embedding;  // outputs: this rank's tokens, inputs: hidden
  std::vector<DeviceLayer> layers;
  base::cuda::DeviceBuffer final_norm;
  Matrix head;  // the embedding if the model ties them
  std::optional<DeviceDrafter> drafter;
};

// Makes *out a copy of these values; of none, nothing. Blocks until it is there. ResourceExhausted:
// it does not fit.
absl::Status UploadFloats(const base::cuda::Device& device, const std::vector<float>& values,
                          base::cuda::DeviceBuffer* out);

// Errors are those of LoadLayers; ResourceExhausted if the weights do not fit.
absl::StatusOr<DeviceWeights> LoadDeviceWeights(const Checkpoint& checkpoint,
                                                const ModelConfig& config,
                                                const Partition& partition, DataType dtype,
                                                const base::cuda::Device& device);
// The same of a drafter that reads hidden states, which one rank has whole.
absl::StatusOr<DeviceWeights> LoadDeviceWeights(const OpenedDrafter& opened,
                                                const ModelConfig& config,
                                                const Partition& partition, DataType dtype,
                                                const base::cuda::Device& device);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_DEVICE_WEIGHTS_H_
