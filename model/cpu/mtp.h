#ifndef SPECFABRIC_MODEL_CPU_MTP_H_
#define SPECFABRIC_MODEL_CPU_MTP_H_

// What the layer of an MTP drafter reads (see MtpDrafter). Used by the rank's thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/cpu/kernels.h"
#include "model/cpu/weights.h"

namespace specfabric::model::cpu {

class Mtp {
 public:
  // `kernels` must outlive it.
  Mtp(const ModelConfig& config, MtpWeights weights, const Kernels& kernels)
      : state_first_(config.states->mtp->state_first),
        hidden_(config.hidden),
        epsilon_(config.rms_epsilon),
        kernels_(&kernels),
        weights_(std::move(weights)) {}

  // states: [rows][hidden]. residual, [rows][hidden]: the embeddings; what the residual stream
  // begins as takes their place.
  absl::Status Join(const float* states, int rows, float* residual);

 private:
  bool state_first_;
  int32_t hidden_;
  float epsilon_;
  const Kernels* kernels_;
  MtpWeights weights_;
  std::vector<float> joined_;  // [rows][2 * hidden], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_MTP_H_
