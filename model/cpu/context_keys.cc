#include "model/cpu/context_keys.h"

#include <utility>

#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

absl::StatusOr<ContextKeys> ContextKeys::Load(
    const OpenedDrafter& drafter, const ModelConfig& config,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix) {
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  std::vector<loading::MatrixShard> shards;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (loading::MatrixShard& shard : loading::KeyValueShards(checkpoint, config, layer)) {
      shards.push_back(std::move(shard));
    }
  }
  ContextKeys context;
  context.width_ = static_cast<size_t>(config.layers) * 2 * config.kv_heads * config.head_dim;
  const loading::Loader<std::unique_ptr<Linear>> loader(checkpoint, make_matrix);
  absl::Status status = loader.Layer(shards, /*parts=*/1, &context.keys_and_values_);
  if (!status.ok()) return status;
  return context;
}

absl::StatusOr<float*> ContextKeys::Project(const float* states, int rows) {
  if (projected_.size() < rows * width_) projected_.resize(rows * width_);
  absl::Status status = keys_and_values_->Forward(states, rows, projected_.data());
  if (!status.ok()) return status;
  return projected_.data();
}

}  // namespace specfabric::model::cpu
