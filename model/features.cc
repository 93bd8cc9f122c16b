#include "model/features.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace specfabric::model {

absl::StatusOr<Features> AllFeaturesBut(std::string_view disabled) {
  Features features;
  const std::pair<const char*, bool*> known[] = {{kCudaGraphs, &features.cuda_graphs},
                                                 {kFlashAttention, &features.flash_attention},
                                                 {kGpuDraftProbs, &features.gpu_draft_probs},
                                                 {kGpuStates, &features.gpu_states},
                                                 {kPeerSums, &features.peer_sums}};
  const absl::string_view names(disabled.data(), disabled.size());
  for (absl::string_view part : absl::StrSplit(names, ',')) {
    const absl::string_view name = absl::StripAsciiWhitespace(part);
    if (name.empty()) continue;
    const auto found = std::find_if(std::begin(known), std::end(known),
                                    [&](const auto& feature) { return name == feature.first; });
    if (found == std::end(known)) {
      return absl::InvalidArgumentError(absl::StrCat("'", name, "': allowed are ", kCudaGraphs,
                                                     ", ", kFlashAttention, ", ", kGpuDraftProbs,
                                                     ", ", kGpuStates, " and ", kPeerSums));
    }
    *found->second = false;
  }
  return features;
}

std::string Describe(std::string_view feature, const FeatureState& state) {
  const absl::string_view name(feature.data(), feature.size());
  return state.on ? absl::StrCat("feature ", name, ": on")
                  : absl::StrCat("feature ", name, ": off: ", state.why);
}

}  // namespace specfabric::model
