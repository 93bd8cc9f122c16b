// What only a transformer does that is a drafter of hidden states.

#include <utility>

#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/cpu_transformer.h"
#include "model/numerics.h"

namespace specfabric::model {

absl::Status CpuTransformer::LoadDrafter(const std::string& model_dir) {
  const absl::StatusOr<OpenedDrafter> opened =
      OpenDrafter(model_dir, options_.target_dir, &config_);
  if (!opened.ok()) return opened.status();
  const auto rows_of = [this](const StoredTensor* tensor, int32_t count) {
    StoredRows rows(config_.hidden);
    rows.Add({.tensor = tensor, .columns = config_.hidden, .row_count = count});
    return rows;
  };
  embedding_ = EmbeddingTable(rows_of(opened->embedding, config_.vocabulary), options_.dtype);
  const MatrixFactory<std::unique_ptr<Linear>> make = LinearFactory();
  absl::StatusOr<ModelWeights> weights =
      LoadLayers(opened->own.checkpoint, config_, partition_, make);
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  const int32_t count = config_.states->draft_vocabulary;
  absl::StatusOr<std::unique_ptr<Linear>> head =
      make({.outputs = count, .inputs = config_.hidden}, rows_of(opened->head, count));
  if (!head.ok()) return head.status();
  weights_.head = *std::move(head);
  absl::StatusOr<cpu::CpuDrafter> parts = LoadCpuDrafter(*opened, config_, make, kernels_);
  if (!parts.ok()) return parts.status();
  drafter_.emplace(*std::move(parts));
  fingerprint_ = HashModel(*opened, config_, rope_);
  return absl::OkStatus();
}

absl::Status CpuTransformer::FuseStates(absl::Span<const float> states, int rows, float* fused) {
  if (!drafter_) return RankModel::FuseStates(states, rows, fused);
  return drafter_->fuser.Fuse(states, rows, fused);
}

absl::Status CpuTransformer::WriteContext(const Batch& batch) {
  if (!drafter_ || !drafter_->context) return RankModel::WriteContext(batch);
  if (absl::Status status = CheckFusedStates(config_, /*wanted=*/true, batch); !status.ok())
    return status;
  if (absl::Status status = PlanAttention(batch); !status.ok()) return status;
  RopeAngles(rope_, batch.positions, &cosines_, &sines_);
  absl::StatusOr<float*> projected = drafter_->context->Project(batch.states.data(), batch.rows());
  if (!projected.ok()) return projected.status();
  const size_t width = static_cast<size_t>(config_.kv_heads) * config_.head_dim;
  const size_t queries = static_cast<size_t>(config_.heads) * config_.head_dim;
  pool_.Run(batch.rows(), [&](int, int begin, int end) {
    for (int row = begin; row < end; ++row) {
      for (int layer = 0; layer < config_.layers; ++layer) {
        float* keys = *projected + (static_cast<size_t>(row) * config_.layers + layer) * 2 * width;
        const std::vector<float>& bias = weights_.layers[layer].qkv_bias;
        for (size_t i = queries; i < bias.size(); ++i) keys[i - queries] += bias[i];
        PlaceKeys(layer, row, keys, keys + width);
      }
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<LogitShard> CpuTransformer::ContinueBlock(absl::Span<const BlockNode> nodes,
                                                         absl::Span<const float> states) {
  if (!drafter_ || !drafter_->head) return RankModel::ContinueBlock(nodes, states);
  const auto count = static_cast<int32_t>(nodes.size());
  const absl::StatusOr<const float*> logits =
      drafter_->head->Continue(nodes, states, normed_.data(), logits_.data());
  if (!logits.ok()) return logits.status();
  next_states_ = drafter_->head->states();
  return LogitShard{drafter_->vocabulary.Spread(*logits, count), count, config_.vocabulary, 0};
}

}  // namespace specfabric::model
