#ifndef SPECFABRIC_MODEL_CPU_STATE_FUSER_H_
#define SPECFABRIC_MODEL_CPU_STATE_FUSER_H_

// The layer "fc" of a drafter that reads hidden states (see StateDrafter), with the norms around
// it; of an MTP drafter its target's final norm alone. Used by the rank's thread.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/cpu/kernels.h"
#include "model/cpu/weights.h"

namespace specfabric::model::cpu {

class StateFuser {
 public:
  // `kernels` must outlive it.
  StateFuser(const ModelConfig& config, FuseWeights weights, const Kernels& kernels);

  // As RankModel::FuseStates.
  absl::Status Fuse(absl::Span<const float> states, int rows, float* fused);

 private:
  StateDrafter states_;
  size_t width_;  // of fc's inputs
  size_t run_;    // that one norm is over
  int32_t hidden_;
  const Kernels* kernels_;
  FuseWeights weights_;
  std::vector<float> inputs_;  // [rows][width], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_STATE_FUSER_H_
