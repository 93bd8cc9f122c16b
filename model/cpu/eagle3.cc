#include "model/cpu/eagle3.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

absl::StatusOr<Eagle3> Eagle3::Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                    const Kernels& kernels) {
  Eagle3 eagle(config, kernels);
  eagle.target_ids_ = drafter.target_ids;
  const StateDrafter& states = *config.states;
  const auto layers = static_cast<int32_t>(states.layers.size());
  const int32_t inputs = layers * states.target_hidden;
  const loading::Loader<std::unique_ptr<Linear>> loader(drafter.own.checkpoint, make_matrix);
  absl::Status status =
      loader.Layer({loading::RowShard(kFuseName, config.hidden, inputs, 0, config.hidden)},
                   /*parts=*/1, &eagle.fuse_);
  if (states.fc_bias) {
    status.Update(loader.Vector(kFuseBiasName, config.hidden, &eagle.fuse_bias_));
  }
  if (states.norm_before_fc) {
    status.Update(loader.Vector(kFuseNormName, inputs, &eagle.fuse_norm_));
  }
  for (int32_t i = 0; states.fc_norm && i < layers; ++i) {
    status.Update(loader.Vector(FuseNormName(i), states.target_hidden, &eagle.fuse_norm_));
  }
  status.Update(
      loader.Vector(absl::StrCat(LayerPrefix(drafter.own.checkpoint, config, 0), kStateNormName),
                    config.hidden, &eagle.state_norm_));
  if (!status.ok()) return status;
  return eagle;
}

absl::Status Eagle3::Fuse(absl::Span<const float> states, int rows, float* fused) {
  const size_t width = states_.layers.size() * states_.target_hidden;
  if (rows < 0 || states.size() != rows * width) {
    return absl::InvalidArgumentError(absl::StrCat("hidden states of ", states.size(),
                                                   " values for ", rows, " rows; allowed: ", width,
                                                   " a row"));
  }
  const float* inputs = states.data();
  if (!fuse_norm_.empty()) {
    const size_t run = states_.fc_norm ? states_.target_hidden : width;
    if (fuse_inputs_.size() < states.size()) fuse_inputs_.resize(states.size());
    for (size_t at = 0; at < states.size(); at += run) {
      kernels_->rms_norm(&states[at], &fuse_norm_[at % width], epsilon_, static_cast<int>(run),
                         &fuse_inputs_[at]);
    }
    inputs = fuse_inputs_.data();
  }
  if (absl::Status status = fuse_->Forward(inputs, rows, fused); !status.ok()) return status;
  for (int row = 0; row < rows; ++row) {
    float* out = fused + static_cast<size_t>(row) * hidden_;
    for (size_t i = 0; i < fuse_bias_.size(); ++i) out[i] += fuse_bias_[i];
  }
  return absl::OkStatus();
}

const float* Eagle3::Join(const float* states, int rows, const std::vector<float>& embedding_norm,
                          float* residual) {
  const size_t hidden = hidden_;
  if (joined_.size() < rows * 2 * hidden) joined_.resize(rows * 2 * hidden);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const float* state = states + row * hidden;
    float* rest = residual + row * hidden;
    float* embedding = &joined_[row * 2 * hidden];
    float* normed = embedding + hidden;
    kernels_->rms_norm(rest, embedding_norm.data(), epsilon_, hidden_, embedding);
    kernels_->rms_norm(state, state_norm_.data(), epsilon_, hidden_, normed);
    std::copy_n(states_.norm_before_residual ? normed : state, hidden, rest);
  }
  return joined_.data();
}

const float* Eagle3::Spread(const float* logits, int rows) {
  if (target_ids_.empty()) return logits;
  const size_t vocabulary = vocabulary_, count = target_ids_.size();
  // What is never scored is set once: the same places in every row of every pass.
  if (spread_.size() < rows * vocabulary) {
    spread_.resize(rows * vocabulary, -std::numeric_limits<float>::infinity());
  }
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t i = 0; i < count; ++i) {
      spread_[row * vocabulary + target_ids_[i]] = logits[row * count + i];
    }
  }
  return spread_.data();
}

}  // namespace specfabric::model::cpu
