#include "model/cpu/weights.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint/float16.h"
#include "model/checkpoint/load_weights.h"

namespace specfabric::model {

template absl::StatusOr<ModelWeights> LoadLayers(
    const Checkpoint& checkpoint, const ModelConfig& config, const Partition& partition,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix);
template absl::StatusOr<std::unique_ptr<Linear>> LoadHead(
    const Checkpoint& checkpoint, const ModelConfig& config, const Partition& partition,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix);

absl::StatusOr<StoredRows> FindEmbedding(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const Partition& partition) {
  absl::StatusOr<const StoredTensor*> tensor = checkpoint.Find(
      EmbeddingName(checkpoint, config.tied_embeddings), {config.vocabulary, config.hidden});
  if (!tensor.ok()) return tensor.status();
  StoredRows rows(config.hidden);
  rows.Add({.tensor = *tensor,
            .columns = config.hidden,
            .first_row = partition.first_token,
            .row_count = partition.vocabulary});
  return rows;
}

EmbeddingTable::EmbeddingTable(const StoredRows& rows, DataType dtype) : hidden_(rows.inputs()) {
  const size_t size = static_cast<size_t>(rows.rows()) * hidden_;
  if (dtype == DataType::kFloat32) {
    float32_.resize(size);
  } else {
    bfloat16_.resize(size);
  }
  std::vector<float> row(hidden_);
  for (int32_t token = 0; token < rows.rows(); ++token) {
    rows.Read(token, 1, DataType::kFloat32, reinterpret_cast<std::byte*>(row.data()));
    Set(token, row.data());
  }
}

void EmbeddingTable::Set(int32_t token, const float* row) {
  const size_t first = static_cast<size_t>(token) * hidden_;
  if (!float32_.empty()) {
    std::copy(row, row + hidden_, float32_.begin() + first);
  } else {
    std::transform(row, row + hidden_, bfloat16_.begin() + first, RoundToBFloat16);
  }
}

void EmbeddingTable::Get(int32_t token, float* row) const {
  const size_t first = static_cast<size_t>(token) * hidden_;
  if (!float32_.empty()) {
    std::copy_n(float32_.begin() + first, hidden_, row);
  } else {
    std::transform(bfloat16_.begin() + first, bfloat16_.begin() + first + hidden_, row,
                   WidenBFloat16);
  }
}

}  // namespace specfabric::model
