#ifndef SPECFABRIC_MODEL_CPU_MTP_H_
#define SPECFABRIC_MODEL_CPU_MTP_H_

// What the layer of an MTP drafter reads (see MtpDrafter). Used by the rank's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/kernels.h"
#include "model/cpu/weights.h"

namespace specfabric::model::cpu {

class Mtp {
 public:
  // Errors are those of Checkpoint::Find and of the factory.
  static absl::StatusOr<Mtp> Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                  const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                  const Kernels& kernels);

  // states: [rows][hidden]. residual, [rows][hidden]: the embeddings; what the residual stream
  // begins as takes their place.
  absl::Status Join(const float* states, int rows, float* residual);

 private:
  Mtp(const ModelConfig& config, const Kernels& kernels)
      : state_first_(config.states->mtp->state_first),
        hidden_(config.hidden),
        epsilon_(config.rms_epsilon),
        kernels_(&kernels) {}

  bool state_first_;
  int32_t hidden_;
  float epsilon_;
  const Kernels* kernels_;
  std::vector<float> token_norm_, state_norm_;  // [hidden]
  std::unique_ptr<Linear> projection_;          // 2 * hidden -> hidden
  std::vector<float> joined_;  // [rows][2 * hidden], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_MTP_H_
