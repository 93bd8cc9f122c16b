#include "model/cpu/mtp.h"

#include <string>

#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

absl::StatusOr<Mtp> Mtp::Load(const OpenedDrafter& drafter, const ModelConfig& config,
                              const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                              const Kernels& kernels) {
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  const loading::Loader<std::unique_ptr<Linear>> loader(checkpoint, make_matrix);
  const std::string layer = LayerPrefix(checkpoint, config, 0);
  const int32_t hidden = config.hidden;
  Mtp mtp(config, kernels);
  absl::Status status = loader.Vector(layer + kMtpTokenNormName, hidden, &mtp.token_norm_);
  status.Update(loader.Vector(layer + kMtpStateNormName, hidden, &mtp.state_norm_));
  status.Update(
      loader.Layer({loading::RowShard(layer + kMtpInputName, hidden, 2 * hidden, 0, hidden)},
                   /*parts=*/1, &mtp.projection_));
  if (!status.ok()) return status;
  return mtp;
}

absl::Status Mtp::Join(const float* states, int rows, float* residual) {
  const size_t hidden = hidden_;
  if (joined_.size() < rows * 2 * hidden) joined_.resize(rows * 2 * hidden);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    float* inputs = &joined_[row * 2 * hidden];
    float* state = state_first_ ? inputs : inputs + hidden;
    float* token = state_first_ ? inputs + hidden : inputs;
    kernels_->rms_norm(states + row * hidden, state_norm_.data(), epsilon_, hidden_, state);
    kernels_->rms_norm(residual + row * hidden, token_norm_.data(), epsilon_, hidden_, token);
  }
  return projection_->Forward(joined_.data(), rows, residual);
}

}  // namespace specfabric::model::cpu
