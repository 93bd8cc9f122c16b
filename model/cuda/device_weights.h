#ifndef SPECFABRIC_MODEL_CUDA_DEVICE_WEIGHTS_H_
#define SPECFABRIC_MODEL_CUDA_DEVICE_WEIGHTS_H_

// One rank's shard of a checkpoint in the memory of its GPU (weights.h says what of it is whole and
// what is split). Vectors are float32; those that a model does not have are empty.

#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/cuda/device.h"
#include "model/cuda/memory.h"
#include "model/parallel/partition.h"

namespace specfabric::model::cuda {

struct DeviceLayer {
  DeviceBuffer attention_norm = {}, mlp_norm = {};
  DeviceBuffer qkv_bias = {}, query_norm = {}, key_norm = {};
  DeviceBuffer output_bias = {}, gate_up_bias = {}, down_bias = {};
  Matrix qkv, output, gate_up, down;
};

struct DeviceWeights {
  Matrix embedding;  // outputs: this rank's tokens, inputs: hidden
  std::vector<DeviceLayer> layers;
  DeviceBuffer final_norm;
  Matrix head;  // the embedding where the model ties them
};

// Errors are those of LoadWeights; ResourceExhausted where they do not fit.
absl::StatusOr<DeviceWeights> LoadDeviceWeights(const Checkpoint& checkpoint,
                                                const ModelConfig& config,
                                                const Partition& partition, DataType dtype,
                                                const Device& device);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_DEVICE_WEIGHTS_H_
