#ifndef SPECFABRIC_MODEL_CPU_LAYER_PLANS_H_
#define SPECFABRIC_MODEL_CPU_LAYER_PLANS_H_

// The attention plans of a pass, one for all layers with the same limits. Used by the rank's
// thread.

#include <vector>

#include "absl/status/status.h"
#include "model/attention_plan.h"
#include "model/checkpoint/config.h"

namespace specfabric::model::cpu {

class LayerPlans {
 public:
  explicit LayerPlans(const ModelConfig& config);

  // Errors are MakeAttentionPlan's.
  absl::Status Make(const Batch& batch, const BatchLimits& limits);
  const AttentionPlan& whole() const { return plans_[0]; }
  // layer: of the model.
  const AttentionPlan& of(int layer) const {
    return of_layer_.empty() ? whole() : plans_[of_layer_[layer]];
  }

 private:
  std::vector<AttentionLimits> limits_ = {AttentionLimits{}};  // [plans]
  std::vector<AttentionPlan> plans_;
  std::vector<int> of_layer_;  // empty: the first of all
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_LAYER_PLANS_H_
