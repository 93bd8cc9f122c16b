#include "model/cpu/state_fuser.h"

#include "absl/strings/str_cat.h"
#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

StateFuser::StateFuser(const ModelConfig& config, const Kernels& kernels)
    : width_(config.states->layers.size() * config.states->target_hidden),
      run_(config.states->fc_norm ? config.states->target_hidden : width_),
      hidden_(config.hidden),
      epsilon_(config.rms_epsilon),
      kernels_(&kernels) {}

absl::StatusOr<StateFuser> StateFuser::Load(
    const OpenedDrafter& drafter, const ModelConfig& config,
    const MatrixFactory<std::unique_ptr<Linear>>& make_matrix, const Kernels& kernels) {
  StateFuser fuser(config, kernels);
  const StateDrafter& states = *config.states;
  const auto width = static_cast<int32_t>(fuser.width_);
  const loading::Loader<std::unique_ptr<Linear>> loader(drafter.own.checkpoint, make_matrix);
  absl::Status status =
      loader.Layer({loading::RowShard(kFuseName, config.hidden, width, 0, config.hidden)},
                   /*parts=*/1, &fuser.fc_);
  if (states.fc_bias) status.Update(loader.Vector(kFuseBiasName, config.hidden, &fuser.bias_));
  if (states.norm_before_fc) {
    status.Update(loader.Vector(kFuseNormName, width, &fuser.input_norm_));
  }
  for (size_t i = 0; states.fc_norm && i < states.layers.size(); ++i) {
    status.Update(loader.Vector(FuseNormName(static_cast<int32_t>(i)), states.target_hidden,
                                &fuser.input_norm_));
  }
  if (states.block) {
    status.Update(loader.Vector(kStateNormName, config.hidden, &fuser.output_norm_));
  }
  if (!status.ok()) return status;
  return fuser;
}

absl::Status StateFuser::Fuse(absl::Span<const float> states, int rows, float* fused) {
  if (rows < 0 || states.size() != rows * width_) {
    return absl::InvalidArgumentError(absl::StrCat("hidden states of ", states.size(),
                                                   " values for ", rows, " rows; allowed: ", width_,
                                                   " a row"));
  }
  const float* inputs = states.data();
  if (!input_norm_.empty()) {
    if (inputs_.size() < states.size()) inputs_.resize(states.size());
    for (size_t at = 0; at < states.size(); at += run_) {
      kernels_->rms_norm(&states[at], &input_norm_[at % width_], epsilon_, static_cast<int>(run_),
                         &inputs_[at]);
    }
    inputs = inputs_.data();
  }
  if (absl::Status status = fc_->Forward(inputs, rows, fused); !status.ok()) return status;
  for (int row = 0; row < rows; ++row) {
    float* out = fused + static_cast<size_t>(row) * hidden_;
    for (size_t i = 0; i < bias_.size(); ++i) out[i] += bias_[i];
    if (!output_norm_.empty()) {
      kernels_->rms_norm(out, output_norm_.data(), epsilon_, hidden_, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model::cpu
