#ifndef SPECFABRIC_MODEL_CPU_CONTEXT_KEYS_H_
#define SPECFABRIC_MODEL_CPU_CONTEXT_KEYS_H_

// The keys and values that the layers of a block drafter have for committed positions: projections
// of their fused states, of all layers in one product. Used by the rank's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/weights.h"

namespace specfabric::model::cpu {

class ContextKeys {
 public:
  // These weights are beside those of the layers, which have the same among others. Errors are
  // those of Checkpoint::Find and of the factory.
  static absl::StatusOr<ContextKeys> Load(
      const OpenedDrafter& drafter, const ModelConfig& config,
      const MatrixFactory<std::unique_ptr<Linear>>& make_matrix);

  // states: [rows][hidden], fused. Returns [rows][layers][keys, values][kv_heads][head_dim], before
  // biases, norms and rotation. Valid until the next call.
  absl::StatusOr<float*> Project(const float* states, int rows);

 private:
  size_t width_ = 0;
  std::unique_ptr<Linear> keys_and_values_;
  std::vector<float> projected_;  // kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_CONTEXT_KEYS_H_
