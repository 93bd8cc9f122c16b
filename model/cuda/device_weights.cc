#include "model/cuda/device_weights.h"

#include <cstring>
#include <memory>
#include <utility>

#include "model/checkpoint/float16.h"
#include "model/checkpoint/load_weights.h"

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

// The shape of a layer's matrix on the device, and the row there of one of its outputs: gates and
// ups lie side by side (product.h).
LinearShape OnDevice(LinearShape shape) {
  if (shape.gated) shape.outputs = GatedOutputs(shape.outputs / 2);
  return shape;
}
int32_t DeviceRow(const LinearShape& shape, int32_t output) {
  if (!shape.gated) return output;
  const int32_t features = shape.outputs / 2;
  return output < features ? GatedRow(output) : GatedRow(output - features) + kGatedRows;
}

// Rows of `shape.inputs` values, converted to the device's type.
class MatrixRows {
 public:
  MatrixRows(const LinearShape& shape, DataType dtype)
      : inputs_(shape.inputs),
        row_bytes_(size_t(shape.inputs) * (dtype == DataType::kFloat32 ? 4 : 2)),
        dtype_(dtype),
        bytes_(row_bytes_ * shape.outputs) {}

  void Set(int32_t row, const float* values) {
    std::byte* const to = bytes_.data() + row * row_bytes_;
    if (dtype_ == DataType::kFloat32) {
      std::memcpy(to, values, row_bytes_);
      return;
    }
    for (int32_t i = 0; i < inputs_; ++i) {
      const uint16_t bits = RoundToBFloat16(values[i]);
      std::memcpy(to + size_t(i) * sizeof(bits), &bits, sizeof(bits));
    }
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  const int32_t inputs_;
  const size_t row_bytes_;
  const DataType dtype_;
  std::vector<std::byte> bytes_;
};

absl::StatusOr<Matrix> UploadMatrix(const Device& device, const LinearShape& shape,
                                    const MatrixRows& rows) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Create(rows.bytes().size());
  if (!buffer.ok()) return buffer.status();
  Matrix matrix = {shape.outputs, shape.inputs, std::make_shared<DeviceBuffer>(*std::move(buffer))};
  absl::Status copied =
      CopyToDevice(device, rows.bytes().data(), rows.bytes().size(), matrix.weights->As<void>());
  if (!copied.ok()) return copied;
  return matrix;
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
  DeviceWeights weights;
  const LinearShape shape = {.outputs = partition.vocabulary, .inputs = config.hidden};
  MatrixRows embedding(shape, dtype);
  absl::Status read =
      ReadEmbedding(checkpoint, config, partition,
                    [&](int32_t index, const float* row) { embedding.Set(index, row); });
  if (!read.ok()) return read;
  absl::StatusOr<Matrix> uploaded = UploadMatrix(device, shape, embedding);
  if (!uploaded.ok()) return uploaded.status();
  weights.embedding = *std::move(uploaded);

  absl::StatusOr<ModelWeightsOf<Matrix>> loaded = LoadWeights<Matrix>(
      checkpoint, config, partition,
      [&](const LinearShape& layer, const WeightReader& reader) -> absl::StatusOr<Matrix> {
        const LinearShape shape = OnDevice(layer);
        MatrixRows rows(shape, dtype);
        std::vector<float> values(layer.inputs);
        for (int32_t output = 0; output < layer.outputs; ++output) {
          reader(output, values.data());
          rows.Set(DeviceRow(layer, output), values.data());
        }
        return UploadMatrix(device, shape, rows);
      });
  if (!loaded.ok()) return loaded.status();
  for (LayerWeightsOf<Matrix>& host : loaded->layers) {
    absl::StatusOr<DeviceLayer> layer = UploadLayer(device, std::move(host));
    if (!layer.ok()) return layer.status();
    weights.layers.push_back(*std::move(layer));
  }
  weights.head = config.tied_embeddings ? weights.embedding : std::move(loaded->head);
  absl::Status status = UploadVector(device, loaded->final_norm, &weights.final_norm);
  if (!status.ok()) return status;
  return weights;
}

}  // namespace specfabric::model::cuda
