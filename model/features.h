#ifndef SPECFABRIC_MODEL_FEATURES_H_
#define SPECFABRIC_MODEL_FEATURES_H_

// The optional features of GPUs. Each is on wherever a check at the start of the process says that
// it works on this machine, and off otherwise, with the reason in the log; an operator can only
// turn them off. Who decides: cuda_graphs, flash_attention and peer_sums are decided while a model
// is loaded, by all ranks of a group together (cuda/feature_checks.h): what one rank cannot do,
// none does. gpu_draft_probs and gpu_states are decided by each target and each draft for itself
// (link/gpu_slots.h).

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace specfabric::model {

inline constexpr char kCudaGraphs[] = "cuda_graphs";          // cuda/graph_cache.h
inline constexpr char kFlashAttention[] = "flash_attention";  // cuda/flash_attention.h
inline constexpr char kGpuDraftProbs[] = "gpu_draft_probs";   // draft probabilities in GPU memory
inline constexpr char kGpuStates[] = "gpu_states";            // hidden states in GPU memory
inline constexpr char kPeerSums[] = "peer_sums";              // cuda/peer_sum.h

// Those that may be used.
struct Features {
  bool cuda_graphs = true;
  bool flash_attention = true;
  bool gpu_draft_probs = true;
  bool gpu_states = true;
  bool peer_sums = true;
};

// All but those that `disabled` names, separated by commas. InvalidArgument: an unknown name.
absl::StatusOr<Features> AllFeaturesBut(std::string_view disabled);

// Whether a feature is used, and why it is not.
struct FeatureState {
  bool on = false;
  std::string why;
};
inline constexpr char kDisabled[] = "it is disabled";

// For the log: "feature cuda_graphs: on", "feature cuda_graphs: off: it is disabled".
std::string Describe(std::string_view feature, const FeatureState& state);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_FEATURES_H_
