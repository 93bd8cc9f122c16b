#ifndef SPECFABRIC_MODEL_CPU_EAGLE3_H_
#define SPECFABRIC_MODEL_CPU_EAGLE3_H_

// What the first layer of an EAGLE-3 drafter reads (see StateDrafter). Used by the rank's thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "model/checkpoint/config.h"
#include "model/cpu/kernels.h"

namespace specfabric::model::cpu {

class Eagle3 {
 public:
  // state_norm: [hidden], the norm of fused states. `kernels` must outlive it.
  Eagle3(const ModelConfig& config, std::vector<float> state_norm, const Kernels& kernels)
      : norm_before_residual_(config.states->norm_before_residual),
        hidden_(config.hidden),
        epsilon_(config.rms_epsilon),
        kernels_(&kernels),
        state_norm_(std::move(state_norm)) {}

  // What the first layer's attention reads, [rows][2 * hidden]: the embeddings, normed by
  // `embedding_norm`, and the fused states, normed. residual, [rows][hidden]: the embeddings; what
  // the residual stream begins as takes their place. Valid until the next call.
  const float* Join(const float* states, int rows, const std::vector<float>& embedding_norm,
                    float* residual);

 private:
  bool norm_before_residual_;
  int32_t hidden_;
  float epsilon_;
  const Kernels* kernels_;
  std::vector<float> state_norm_;
  std::vector<float> joined_;  // [rows][2 * hidden], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_EAGLE3_H_
