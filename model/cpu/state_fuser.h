#ifndef SPECFABRIC_MODEL_CPU_STATE_FUSER_H_
#define SPECFABRIC_MODEL_CPU_STATE_FUSER_H_

// The layer "fc" of a drafter that reads hidden states (see StateDrafter), with the norms around
// it. Used by the rank's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/kernels.h"
#include "model/cpu/weights.h"

namespace specfabric::model::cpu {

class StateFuser {
 public:
  // Errors are those of Checkpoint::Find and of the factory.
  static absl::StatusOr<StateFuser> Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                         const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                         const Kernels& kernels);

  // As RankModel::FuseStates.
  absl::Status Fuse(absl::Span<const float> states, int rows, float* fused);

 private:
  StateFuser(const ModelConfig& config, const Kernels& kernels);

  size_t width_;  // of fc's inputs
  size_t run_;    // that one norm is over
  int32_t hidden_;
  float epsilon_;
  const Kernels* kernels_;
  // The norms over runs of fc's inputs, one behind the other: of one run, of one a layer, or none.
  std::vector<float> input_norm_;
  std::unique_ptr<Linear> fc_;
  std::vector<float> bias_;         // [hidden], or empty
  std::vector<float> output_norm_;  // [hidden], of a block drafter, else empty
  std::vector<float> inputs_;       // [rows][width], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_STATE_FUSER_H_
