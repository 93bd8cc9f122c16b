#ifndef SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_TENSORS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_TENSORS_H_

// The checkpoint of a drafter that reads hidden states, with what it shares with its target.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/types.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"

namespace specfabric::model {

struct OpenedDrafter {
  OpenedCheckpoint own;
  std::optional<OpenedCheckpoint> target;   // where something of it is used
  const StoredTensor* embedding = nullptr;  // [vocabulary][hidden]
  const StoredTensor* head = nullptr;       // [draft_vocabulary][hidden]
  // Of an MTP drafter: the norm of its target that is before the target's head, [hidden].
  const StoredTensor* target_norm = nullptr;
  float target_epsilon = 0;  // of that norm
  // [draft_vocabulary], all different: the target's ids of the tokens that the head scores. Empty:
  // the same.
  std::vector<base::TokenId> target_ids;
};

// config: what LoadModelConfig(model_dir) returned, with `states`; its layers are filled in
// (ResolveDrafter). target_dir: the target's checkpoint folder; may be empty if nothing of it is
// needed. Errors are OpenCheckpoint's, LoadModelConfig's of the target, and ResolveDrafter's.
// InvalidArgument: the target's checkpoint is needed, and not given or without what is needed; ids
// that are not the target's.
absl::StatusOr<OpenedDrafter> OpenDrafter(const std::string& model_dir,
                                          const std::string& target_dir, ModelConfig* config);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_TENSORS_H_
