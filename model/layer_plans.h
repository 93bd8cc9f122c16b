#ifndef SPECFABRIC_MODEL_LAYER_PLANS_H_
#define SPECFABRIC_MODEL_LAYER_PLANS_H_

// The attention plans of a pass, one for all layers with the same limits. Used by the rank's
// thread.

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "model/attention_plan.h"
#include "model/checkpoint/config.h"

namespace specfabric::model {

class LayerPlans {
 public:
  explicit LayerPlans(const ModelConfig& config);

  // Errors are MakeAttentionPlan's.
  absl::Status Make(const Batch& batch, const BatchLimits& limits);
  // The first, of layers without limits. Plans differ in their rows' views alone.
  const AttentionPlan& whole() const { return plans_[0]; }
  // layer: of the model.
  const AttentionPlan& of(int layer) const { return plans_[index_of(layer)]; }
  int index_of(int layer) const { return of_layer_.empty() ? 0 : of_layer_[layer]; }
  const std::vector<AttentionPlan>& all() const { return plans_; }
  bool limits_all_layers() const {
    return std::all_of(of_layer_.begin(), of_layer_.end(), [](int plan) { return plan != 0; }) &&
           !of_layer_.empty();
  }

 private:
  std::vector<AttentionLimits> limits_ = {AttentionLimits{}};  // [plans]
  std::vector<AttentionPlan> plans_;
  std::vector<int> of_layer_;  // empty: the first of all
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_LAYER_PLANS_H_
