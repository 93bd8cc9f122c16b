#ifndef SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_CONFIG_H_
#define SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_CONFIG_H_

// Drafters that read the hidden states of their target: what their config.json says beyond that of
// any other model.

#include <cstdint>
#include <optional>
#include <vector>

namespace specfabric::model {

// As many hidden states of a target are read where config.json does not say which.
inline constexpr int32_t kDefaultStateLayers = 3;

enum class DrafterKind : uint8_t { kEagle3, kDFlash, kDSpark, kMtp };
const char* Name(DrafterKind kind);  // "eagle3", "dflash", "dspark", "mtp"

// What a block drafter's sequential head reads, beside the token before, to correct the scores that
// the rows of a block have by themselves (DSpark, arXiv 2607.05147). kVanilla: nothing else;
// kGated: the row's output; kRecurrent: that and all tokens of the block before, in a state.
enum class MarkovKind : uint8_t { kNone, kVanilla, kGated, kRecurrent };

// DFlash (arXiv 2602.06036) and DSpark. The keys and values of committed positions are projected
// from their fused states, on all layers. One pass over a block of rows, the last committed token
// (the anchor) and masks behind it, gives the scores of as many positions.
struct BlockDrafter {
  int32_t rows = 0;  // of a block, at least 2
  // Row i predicts the token after its position. Else the one at its position, which the anchor's
  // row does not.
  bool from_anchor = false;
  std::vector<bool> causal;  // [layers] a row of the block does not see those behind it
  MarkovKind markov = MarkovKind::kNone;
  int32_t markov_rank = 0;
  // A head that says how likely each draft token is accepted if those before it were; its inputs.
  bool confidence = false;
  bool confidence_reads_markov = false;  // the embedding of the token before, beside the output

  // Rows depend on the tokens drafted before them, or on what is said of those.
  bool sequential() const { return markov != MarkovKind::kNone || confidence; }
  int32_t levels() const { return from_anchor ? rows : rows - 1; }
};

// One layer that predicts a further token from the target's last hidden state (multi-token
// prediction). The pair of that state behind the target's final norm and the embedding of the token
// after it, each normed, is projected to the residual stream that the layer then reads.
struct MtpDrafter {
  bool in_target = false;    // it is part of its target's own checkpoint
  bool state_first = false;  // of the projection's inputs; else the embedding is
};

// A drafter that reads states, in the order of a pass. Of every position the target's hidden states
// are joined and projected to the drafter's width by a layer "fc": the fused state. In EAGLE-3
// (arXiv 2503.01840) the first layer attends over pairs of a token's embedding and the fused state
// of the position before it; its residual stream begins as that state. Further layers are ordinary
// ones. An MTP drafter has no "fc": its fused state is the target's state behind the final norm.
// For block drafters see above.
struct StateDrafter {
  DrafterKind kind = DrafterKind::kEagle3;
  // The boundaries of the target whose residual stream is read, in the order of fc's inputs.
  // Boundary v is the input of layer v, and the number of layers is what comes after the last one,
  // before the final norm. Empty: config.json names none (see ResolveDrafter).
  std::vector<int32_t> layers;
  int32_t target_hidden = 0;
  int32_t draft_vocabulary = 0;  // the ids that its head has
  // [layers of the drafter] a row sees so many positions, the last of them its own; 0: all. Empty:
  // all on every layer.
  std::vector<int32_t> windows = {};
  bool norm_before_fc = false;  // one norm over all of fc's inputs
  bool fc_norm = false;         // or one for each layer's
  bool fc_bias = false;
  bool norm_before_residual = false;  // the residual stream begins as the normed state
  bool norm_output = false;  // the next row gets the last norm's output, not the residual stream
  std::optional<BlockDrafter> block = {};  // of DFlash and DSpark
  std::optional<MtpDrafter> mtp = {};
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_CONFIG_H_
