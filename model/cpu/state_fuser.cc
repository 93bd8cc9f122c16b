#include "model/cpu/state_fuser.h"

#include <algorithm>
#include <utility>

#include "model/hidden_states.h"

namespace specfabric::model::cpu {

StateFuser::StateFuser(const ModelConfig& config, FuseWeights weights, const Kernels& kernels)
    : states_(*config.states),
      width_(states_.layers.size() * states_.target_hidden),
      run_(states_.fc_norm ? states_.target_hidden : width_),
      hidden_(config.hidden),
      kernels_(&kernels),
      weights_(std::move(weights)) {}

absl::Status StateFuser::Fuse(absl::Span<const float> states, int rows, float* fused) {
  absl::Status status = CheckStateRows(states_, states.size(), rows);
  if (!status.ok()) return status;
  const float* inputs = states.data();
  if (!weights_.fuse_norm.empty()) {
    if (inputs_.size() < states.size()) inputs_.resize(states.size());
    for (size_t at = 0; at < states.size(); at += run_) {
      kernels_->rms_norm(&states[at], &weights_.fuse_norm[at % width_], weights_.epsilon,
                         static_cast<int>(run_), &inputs_[at]);
    }
    inputs = inputs_.data();
  }
  if (weights_.fuse == nullptr) {
    std::copy_n(inputs, states.size(), fused);
  } else if (status = weights_.fuse->Forward(inputs, rows, fused); !status.ok()) {
    return status;
  }
  for (int row = 0; row < rows; ++row) {
    float* out = fused + static_cast<size_t>(row) * hidden_;
    for (size_t i = 0; i < weights_.fuse_bias.size(); ++i) out[i] += weights_.fuse_bias[i];
    if (states_.block) {
      kernels_->rms_norm(out, weights_.state_norm.data(), weights_.epsilon, hidden_, out);
    }
  }
  return status;
}

}  // namespace specfabric::model::cpu
