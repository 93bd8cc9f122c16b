#ifndef SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_CONFIG_H_
#define SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_CONFIG_H_

// Drafters that read the hidden states of their target: what their config.json says beyond that of
// any other model.

#include <cstdint>
#include <vector>

namespace specfabric::model {

// As many hidden states of a target are read where config.json does not say which.
inline constexpr int32_t kDefaultStateLayers = 3;

enum class DrafterKind : uint8_t { kEagle3 };
const char* Name(DrafterKind kind);  // "eagle3"

// EAGLE-3 (arXiv 2503.01840), in the order of a pass. Of every position the target's hidden states
// are joined and projected to the drafter's width by a layer "fc": the fused state. The first layer
// of the drafter attends over pairs of a token's embedding and the fused state of the position
// before it; its residual stream begins as that state. Further layers are ordinary ones.
struct StateDrafter {
  DrafterKind kind = DrafterKind::kEagle3;
  // The boundaries of the target whose residual stream is read, in the order of fc's inputs.
  // Boundary v is the input of layer v, and the number of layers is what comes after the last one,
  // before the final norm. Empty: config.json names none (see ResolveDrafter).
  std::vector<int32_t> layers;
  int32_t target_hidden = 0;
  int32_t draft_vocabulary = 0;  // the ids that its head has
  bool norm_before_fc = false;   // one norm over all of fc's inputs
  bool fc_norm = false;          // or one for each layer's
  bool fc_bias = false;
  bool norm_before_residual = false;  // the residual stream begins as the normed state
  bool norm_output = false;  // the next row gets the last norm's output, not the residual stream
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_CONFIG_H_
