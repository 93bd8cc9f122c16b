#ifndef SPECFABRIC_MODEL_CPU_EAGLE3_H_
#define SPECFABRIC_MODEL_CPU_EAGLE3_H_

// What an EAGLE-3 drafter has before and behind its layers that other models do not have (see
// StateDrafter). Used by the rank's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/kernels.h"
#include "model/cpu/weights.h"
#include "model/linear.h"

namespace specfabric::model::cpu {

class Eagle3 {
 public:
  // Errors are those of Checkpoint::Find and of the factory.
  static absl::StatusOr<Eagle3> Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                     const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                     const Kernels& kernels);

  // As RankModel::FuseStates.
  absl::Status Fuse(absl::Span<const float> states, int rows, float* fused);

  // What the first layer's attention reads, [rows][2 * hidden]: the embeddings, normed by
  // `embedding_norm`, and the fused states, normed. residual, [rows][hidden]: the embeddings; what
  // the residual stream begins as takes their place. Valid until the next call.
  const float* Join(const float* states, int rows, const std::vector<float>& embedding_norm,
                    float* residual);

  // The logits of the target's vocabulary, [rows][vocabulary], of those of the draft's,
  // [rows][draft_vocabulary]: minus infinity for what the head does not score. Valid until the next
  // call, as `logits` are.
  const float* Spread(const float* logits, int rows);

 private:
  Eagle3(const ModelConfig& config, const Kernels& kernels)
      : states_(*config.states),
        vocabulary_(config.vocabulary),
        hidden_(config.hidden),
        epsilon_(config.rms_epsilon),
        kernels_(&kernels) {}

  StateDrafter states_;
  int32_t vocabulary_, hidden_;
  float epsilon_;
  const Kernels* kernels_;
  // The norms over runs of fc's inputs, one behind the other: of one run, of one a layer, or none.
  std::vector<float> fuse_norm_;
  std::unique_ptr<Linear> fuse_;
  std::vector<float> fuse_bias_;   // [hidden], or empty
  std::vector<float> state_norm_;  // [hidden]
  std::vector<base::TokenId> target_ids_;

  // Kept between passes, so that steady passes allocate nothing.
  std::vector<float> fuse_inputs_;  // [rows][layers * target_hidden]
  std::vector<float> joined_;       // [rows][2 * hidden]
  std::vector<float> spread_;       // [rows][vocabulary]
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_EAGLE3_H_
