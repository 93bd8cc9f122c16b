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

template <typename T>
absl::Status UploadVector(const Device& device, const std::vector<T>& values, DeviceBuffer* out) {
  if (values.empty()) return absl::OkStatus();
  const size_t bytes = values.size() * sizeof(T);
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

MatrixFactory<Matrix> FactoryOf(WeightUpload* upload) {
  return [upload](const LinearShape& shape, const StoredRows& rows) {
    return upload->Add(shape, rows);
  };
}

absl::StatusOr<Matrix> AddRows(WeightUpload* upload, const StoredRows& rows) {
  return upload->Add({.outputs = rows.rows(), .inputs = rows.inputs()}, rows);
}

absl::Status LoadLayersInto(const Checkpoint& checkpoint, const ModelConfig& config,
                            const Partition& partition, const Device& device, WeightUpload* upload,
                            DeviceWeights* weights) {
  absl::StatusOr<ModelWeightsOf<Matrix>> loaded =
      LoadLayers(checkpoint, config, partition, FactoryOf(upload));
  if (!loaded.ok()) return loaded.status();
  for (LayerWeightsOf<Matrix>& host : loaded->layers) {
    absl::StatusOr<DeviceLayer> layer = UploadLayer(device, std::move(host));
    if (!layer.ok()) return layer.status();
    weights->layers.push_back(*std::move(layer));
  }
  return UploadVector(device, loaded->final_norm, &weights->final_norm);
}

// Where the head has the score of each of the target's ids.
std::vector<int32_t> PlacesOf(const std::vector<base::TokenId>& target_ids, int32_t vocabulary) {
  if (target_ids.empty()) return {};
  std::vector<int32_t> places(vocabulary, -1);
  for (size_t i = 0; i < target_ids.size(); ++i) {
    places[target_ids[i]] = static_cast<int32_t>(i);
  }
  return places;
}

absl::Status LoadMtp(const OpenedDrafter& opened, const ModelConfig& config, const Device& device,
                     WeightUpload* upload, DeviceDrafter* drafter) {
  absl::StatusOr<MtpWeightsOf<Matrix>> host = LoadMtpWeights(opened, config, FactoryOf(upload));
  if (!host.ok()) return host.status();
  drafter->projection = std::move(host->projection);
  absl::Status status = UploadVector(device, host->state_norm, &drafter->state_norm);
  status.Update(UploadVector(device, host->token_norm, &drafter->token_norm));
  return status;
}

absl::StatusOr<DeviceDrafter> LoadDrafter(const OpenedDrafter& opened, const ModelConfig& config,
                                          const Device& device, WeightUpload* upload) {
  absl::StatusOr<FuseWeightsOf<Matrix>> host = LoadFuseWeights(opened, config, FactoryOf(upload));
  if (!host.ok()) return host.status();
  DeviceDrafter drafter = {.fuse = std::move(host->fuse),
                           .fuse_norm = {},
                           .fuse_epsilon = host->epsilon,
                           .fuse_bias = std::move(host->fuse_bias),
                           .state_norm = {},
                           .places = {}};
  absl::Status status = UploadVector(device, host->fuse_norm, &drafter.fuse_norm);
  status.Update(UploadVector(device, host->state_norm, &drafter.state_norm));
  status.Update(
      UploadVector(device, PlacesOf(opened.target_ids, config.vocabulary), &drafter.places));
  if (config.states->mtp) status.Update(LoadMtp(opened, config, device, upload, &drafter));
  if (!status.ok()) return status;
  return drafter;
}

}  // namespace

absl::Status UploadFloats(const Device& device, const std::vector<float>& values,
                          DeviceBuffer* out) {
  return UploadVector(device, values, out);
}

absl::StatusOr<DeviceWeights> LoadDeviceWeights(const Checkpoint& checkpoint,
                                                const ModelConfig& config,
                                                const Partition& partition, DataType dtype,
                                                const Device& device) {
  WeightUpload upload(&device, dtype);
  DeviceWeights weights;
  absl::StatusOr<StoredRows> embedding = FindEmbedding(checkpoint, config, partition);
  if (!embedding.ok()) return embedding.status();
  absl::StatusOr<Matrix> table = AddRows(&upload, *embedding);
  if (!table.ok()) return table.status();
  weights.embedding = *std::move(table);
  weights.head = weights.embedding;
  if (!config.tied_embeddings) {
    absl::StatusOr<Matrix> head = LoadHead(checkpoint, config, partition, FactoryOf(&upload));
    if (!head.ok()) return head.status();
    weights.head = *std::move(head);
  }
  absl::Status status = LoadLayersInto(checkpoint, config, partition, device, &upload, &weights);
  if (status.ok()) status = upload.Run();
  if (!status.ok()) return status;
  return weights;
}

absl::StatusOr<DeviceWeights> LoadDeviceWeights(const OpenedDrafter& opened,
                                                const ModelConfig& config,
                                                const Partition& partition, DataType dtype,
                                                const Device& device) {
  WeightUpload upload(&device, dtype);
  const auto add = [&](const StoredTensor* tensor, int32_t count) {
    StoredRows rows(config.hidden);
    rows.Add({.tensor = tensor, .columns = config.hidden, .row_count = count});
    return AddRows(&upload, rows);
  };
  DeviceWeights weights;
  absl::StatusOr<Matrix> embedding = add(opened.embedding, config.vocabulary);
  if (!embedding.ok()) return embedding.status();
  weights.embedding = *std::move(embedding);
  weights.head = weights.embedding;
  if (opened.head != opened.embedding) {
    absl::StatusOr<Matrix> head = add(opened.head, config.states->draft_vocabulary);
    if (!head.ok()) return head.status();
    weights.head = *std::move(head);
  }
  absl::StatusOr<DeviceDrafter> drafter = LoadDrafter(opened, config, device, &upload);
  if (!drafter.ok()) return drafter.status();
  weights.drafter = *std::move(drafter);
  absl::Status status =
      LoadLayersInto(opened.own.checkpoint, config, partition, device, &upload, &weights);
  if (status.ok()) status = upload.Run();
  if (!status.ok()) return status;
  return weights;
}

}  // namespace specfabric::model::cuda
