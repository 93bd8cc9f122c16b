#include "model/cpu/mtp.h"

namespace specfabric::model::cpu {

absl::Status Mtp::Join(const float* states, int rows, float* residual) {
  const size_t hidden = hidden_;
  if (joined_.size() < rows * 2 * hidden) joined_.resize(rows * 2 * hidden);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    float* inputs = &joined_[row * 2 * hidden];
    float* state = state_first_ ? inputs : inputs + hidden;
    float* token = state_first_ ? inputs + hidden : inputs;
    kernels_->rms_norm(states + row * hidden, weights_.state_norm.data(), epsilon_, hidden_, state);
    kernels_->rms_norm(residual + row * hidden, weights_.token_norm.data(), epsilon_, hidden_,
                       token);
  }
  return weights_.projection->Forward(joined_.data(), rows, residual);
}

}  // namespace specfabric::model::cpu
