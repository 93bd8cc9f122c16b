#include "model/layer_plans.h"

#include <algorithm>

namespace specfabric::model {

LayerPlans::LayerPlans(const ModelConfig& config) {
  for (int32_t layer = 0; config.states && layer < config.layers; ++layer) {
    const StateDrafter& states = *config.states;
    const AttentionLimits limits = {.window = states.windows.empty() ? 0 : states.windows[layer],
                                    .causal_blocks = states.block && states.block->causal[layer]};
    const auto found = std::find(limits_.begin(), limits_.end(), limits);
    of_layer_.push_back(static_cast<int>(found - limits_.begin()));
    if (found == limits_.end()) limits_.push_back(limits);
  }
  plans_.resize(limits_.size());
}

absl::Status LayerPlans::Make(const Batch& batch, const BatchLimits& limits) {
  if (absl::Status made = MakeAttentionPlan(batch, limits, plans_.data()); !made.ok()) return made;
  for (size_t i = 1; i < plans_.size(); ++i) LimitPlan(batch, limits_[i], plans_[0], &plans_[i]);
  return absl::OkStatus();
}

}  // namespace specfabric::model
