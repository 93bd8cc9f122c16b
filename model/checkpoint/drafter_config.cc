#include "model/checkpoint/drafter_config.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/config.h"

namespace specfabric::model {

const char* Name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::kEagle3:
      return "eagle3";
  }
  return "";
}

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
  // What is meant where nothing is said: near the first layer, in the middle, near the last.
  const std::array<int32_t, kDefaultStateLayers> usual = {2, target.layers / 2, target.layers - 3};
  if (states.layers.empty()) states.layers.assign(usual.begin(), usual.end());
  for (int32_t layer : states.layers) {
    if (layer >= 0 && layer <= target.layers) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the drafter reads the target's hidden state at boundary ", layer,
                     "; allowed: 0 to its number of layers, ", target.layers));
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model
