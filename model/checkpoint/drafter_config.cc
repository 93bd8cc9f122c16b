#include "model/checkpoint/drafter_config.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/config.h"

namespace specfabric::model {

const char* Name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::kEagle3:
      return "eagle3";
    case DrafterKind::kDFlash:
      return "dflash";
    case DrafterKind::kDSpark:
      return "dspark";
    case DrafterKind::kMtp:
      return "mtp";
  }
  return "";
}

namespace {

// What is meant where nothing is said. EAGLE-3: near the first layer, in the middle, near the last.
// Block drafters: as many as they have layers, evenly from the second to the third from the end.
std::vector<int32_t> UsualLayers(const StateDrafter& states, int32_t layers,
                                 int32_t target_layers) {
  if (!states.block) return {2, target_layers / 2, target_layers - 3};
  if (layers == 1) return {target_layers / 2 + 1};
  std::vector<int32_t> usual;
  for (int32_t i = 0; i < layers; ++i) {
    const double after = 1.0 + double(i) * (target_layers - 4) / (layers - 1);
    // To the even one of two that are equally near, as Python rounds.
    usual.push_back(static_cast<int32_t>(std::nearbyint(after)) + 1);
  }
  return usual;
}

}  // namespace

absl::Status ResolveDrafter(const ModelConfig& target, ModelConfig* drafter) {
  StateDrafter& states = *drafter->states;
  if (target.states) {
    return absl::InvalidArgumentError(
        absl::StrCat("the drafter's target is a ", target.architecture,
                     ", a drafter too; allowed: a model with layers to read"));
  }
  const auto differs = [](const char* what, int32_t given, int32_t allowed) {
    return absl::InvalidArgumentError(absl::StrCat("the drafter is for a target with ", what, " ",
                                                   given, "; allowed: the target's, ", allowed));
  };
  if (states.target_hidden != target.hidden) {
    return differs("hidden size", states.target_hidden, target.hidden);
  }
  if (drafter->vocabulary != target.vocabulary) {
    return differs("vocabulary", drafter->vocabulary, target.vocabulary);
  }
  if (states.mtp && states.layers != std::vector<int32_t>{target.layers}) {
    return absl::InvalidArgumentError(
        absl::StrCat("the drafter reads the target's hidden state at boundary ",
                     absl::StrJoin(states.layers, ","), "; allowed: that after its last layer, ",
                     target.layers));
  }
  if (states.layers.empty()) states.layers = UsualLayers(states, drafter->layers, target.layers);
  for (int32_t layer : states.layers) {
    if (layer >= 0 && layer <= target.layers) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the drafter reads the target's hidden state at boundary ", layer,
                     "; allowed: 0 to its number of layers, ", target.layers));
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model
