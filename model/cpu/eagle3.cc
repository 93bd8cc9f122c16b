#include "model/cpu/eagle3.h"

#include <algorithm>

namespace specfabric::model::cpu {

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
    std::copy_n(norm_before_residual_ ? normed : state, hidden, rest);
  }
  return joined_.data();
}

}  // namespace specfabric::model::cpu
