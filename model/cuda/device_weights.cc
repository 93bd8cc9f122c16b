#include "model/cuda/device_weights.h"

#include <utility>

#include "model/checkpoint/load_weights.h"
#include "model/cuda/weight_upload.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::DeviceBuffer;

absl::Status CopyToDevice(const Device& device, const void* host, size_t bytes, void* to) {
  absl::Status status = device.ToDevice(host, bytes, to);
  if (!status.ok()) return status;
  return device.Finish();
}

absl::Status UploadVector(const Device& device, const std::vector<float>& values,
                          DeviceBuffer* out) {
  if (values.empty()) return absl::OkStatus();
  const size_t bytes = values.size() * sizeof(float);
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Create(bytes);
  if (!buffer.ok()) return buffer.status();
  *out = *std::move(buffer);
  return CopyToDevice(device, values.data(), bytes, out->As<void>());
}

absl::StatusOr<DeviceLayer> UploadLayer(const Device& device, LayerWeightsOf<Matrix> host) {
  DeviceLayer layer = {.qkv = std::move(host.qkv),
                       .output = std::move(host.output),
                       .gate_up = std::move(host.gate_up),
                       .down = std::move(host.down)};
  const std::pair<const std::vector<float>*, DeviceBuffer*> vectors[] = {
      {&host.attention_norm, &layer.attention_norm},
      {&host.mlp_norm, &layer.mlp_norm},
      {&host.qkv_bias, &layer.qkv_bias},
      {&host.query_norm, &layer.query_norm},
      {&host.key_norm, &layer.key_norm},
      {&host.output_bias, &layer.output_bias},
      {&host.gate_up_bias, &layer.gate_up_bias},
      {&host.down_bias, &layer.down_bias}};
  for (const auto& [values, buffer] : vectors) {
    if (absl::Status status = UploadVector(device, *values, buffer); !status.ok()) return status;
  }
  return layer;
}

}  // namespace

absl::StatusOr<DeviceWeights> LoadDeviceWeights(const Checkpoint& checkpoint,
                                                const ModelConfig& config,
                                                const Partition& partition, DataType dtype,
                                                const Device& device) {
  WeightUpload upload(&device, dtype);
  const MatrixFactory<Matrix> add = [&](const LinearShape& shape, const StoredRows& rows) {
    return upload.Add(shape, rows);
  };
  DeviceWeights weights;
  absl::StatusOr<StoredRows> embedding = FindEmbedding(checkpoint, config, partition);
  if (!embedding.ok()) return embedding.status();
  const LinearShape shape = {.outputs = embedding->rows(), .inputs = embedding->inputs()};
  absl::StatusOr<Matrix> table = upload.Add(shape, *embedding);
  if (!table.ok()) return table.status();
  weights.embedding = *std::move(table);
  weights.head = weights.embedding;
  if (!config.tied_embeddings) {
    absl::StatusOr<Matrix> head = LoadHead(checkpoint, config, partition, add);
    if (!head.ok()) return head.status();
    weights.head = *std::move(head);
  }
  absl::StatusOr<ModelWeightsOf<Matrix>> loaded = LoadLayers(checkpoint, config, partition, add);
  if (!loaded.ok()) return loaded.status();
  for (LayerWeightsOf<Matrix>& host : loaded->layers) {
    absl::StatusOr<DeviceLayer> layer = UploadLayer(device, std::move(host));
    if (!layer.ok()) return layer.status();
    weights.layers.push_back(*std::move(layer));
  }
  absl::Status status = UploadVector(device, loaded->final_norm, &weights.final_norm);
  if (status.ok()) status = upload.Run();
  if (!status.ok()) return status;
  return weights;
}

}  // namespace specfabric::model::cuda
