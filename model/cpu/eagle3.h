#ifndef SPECFABRIC_MODEL_CPU_EAGLE3_H_
#define SPECFABRIC_MODEL_CPU_EAGLE3_H_

// What the first layer of an EAGLE-3 drafter reads (see StateDrafter). Used by the rank's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/kernels.h"

namespace specfabric::model::cpu {

class Eagle3 {
 public:
  // Errors are those of Checkpoint::Find.
  static absl::StatusOr<Eagle3> Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                     const Kernels& kernels);

  // What the first layer's attention reads, [rows][2 * hidden]: the embeddings, normed by
  // `embedding_norm`, and the fused states, normed. residual, [rows][hidden]: the embeddings; what
  // the residual stream begins as takes their place. Valid until the next call.
  const float* Join(const float* states, int rows, const std::vector<float>& embedding_norm,
                    float* residual);

 private:
  Eagle3(const ModelConfig& config, const Kernels& kernels)
      : norm_before_residual_(config.states->norm_before_residual),
        hidden_(config.hidden),
        epsilon_(config.rms_epsilon),
        kernels_(&kernels) {}

  bool norm_before_residual_;
  int32_t hidden_;
  float epsilon_;
  const Kernels* kernels_;
  std::vector<float> state_norm_;  // [hidden]
  std::vector<float> joined_;  // [rows][2 * hidden], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_EAGLE3_H_
