#include "model/cpu/context_keys.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

absl::StatusOr<ContextKeys> ContextKeys::Load(
    const OpenedDrafter& drafter, const ModelConfig& config,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix) {
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  const int32_t outputs = config.kv_heads * config.head_dim;
  std::vector<loading::MatrixShard> shards;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = absl::StrCat(LayerPrefix(checkpoint, config, layer), "self_attn.");
    for (const char* name : {"k_proj.weight", "v_proj.weight"}) {
      shards.push_back(loading::RowShard(prefix + name, outputs, config.hidden, 0, outputs));
    }
  }
  ContextKeys context;
  context.width_ = static_cast<size_t>(config.layers) * 2 * outputs;
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
