#include "model/checkpoint/block_drafter_fields.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace specfabric::model {
namespace {

constexpr int32_t kMostRows = 64;  // of a block
constexpr int32_t kMostLayers = 128;

// What would make another model of it.
void RefuseOthers(NestedFields& fields) {
  // A DFlash2: convolutions, and a walk over candidates.
  for (const char* name : {"conv_kernel_size", "selector_rank"}) {
    if (fields.nested().Find(name) == nullptr) continue;
    fields.nested().Unsupported(name, Shown(*fields.nested().Find(name)),
                                "none: DFlash2 is not supported, DFlash and DSpark are");
  }
  for (const char* name : {"attention_sink_bias", "attention_value_scale"}) {
    const nlohmann::json* value = fields.nested().Find(name);
    if (value == nullptr || *value == false || *value == 1) continue;
    fields.nested().Unsupported(name, Shown(*value), "none");
  }
  if (!fields.FlagOr("use_aux_hidden_state", true)) {
    fields.With("use_aux_hidden_state").Unsupported("use_aux_hidden_state", "false", "true");
  }
}

// Some exports say beside the layers how long a window is.
void ReadWindow(NestedFields& fields, std::vector<int32_t>* windows) {
  if (windows->empty() && fields.nested().FlagOr("use_swa", false)) {
    fields.nested().Unsupported("use_swa", "true", "true beside layer_types that say where");
  }
  const int32_t window = fields.nested().CountOr("swa_window_size", 0, /*least=*/0);
  for (int32_t& of_layer : *windows) {
    if (of_layer > 0 && window > 0) of_layer = window;
  }
}

// Which layers of a block's rows do not see those behind them: those with a window, unless
// config.json says it of all.
std::vector<bool> CausalLayers(NestedFields& fields, int32_t layers,
                               const std::vector<int32_t>& windows) {
  for (const char* name : {"is_causal", "causal"}) {
    if (fields.With(name).Find(name) == nullptr) continue;
    return std::vector<bool>(layers, fields.FlagOr(name, false));
  }
  std::vector<bool> causal(layers, false);
  const bool sliding = !fields.FlagOr("sliding_window_non_causal", false);
  for (int32_t i = 0; i < layers && !windows.empty(); ++i) causal[i] = sliding && windows[i] != 0;
  return causal;
}

// What is not said is as the library's that wrote the file: `speculators` has both heads then, the
// others none, but for a confidence head whose loss had a weight.
void ReadMarkov(NestedFields& fields, BlockDrafter* block) {
  const bool speculators = fields.top().Find(kSpeculatorsType) != nullptr;
  constexpr int32_t kSpeculatorsRank = 256;
  block->markov_rank = fields.With("markov_rank")
                           .CountOr("markov_rank", speculators ? kSpeculatorsRank : 0, /*least=*/0);
  const std::string type = fields.With("markov_head_type").TextOr("markov_head_type", "vanilla");
  constexpr std::pair<const char*, MarkovKind> kTypes[] = {{"vanilla", MarkovKind::kVanilla},
                                                           {"gated", MarkovKind::kGated},
                                                           {"rnn", MarkovKind::kRecurrent}};
  for (const auto& [name, head] : kTypes) {
    if (type == name && block->markov_rank > 0) block->markov = head;
  }
  if (block->markov_rank > 0 && block->markov == MarkovKind::kNone) {
    fields.With("markov_head_type").Unsupported("markov_head_type", type, "vanilla, gated, rnn");
  }
  const nlohmann::json* alpha = fields.With("confidence_head_alpha").Find("confidence_head_alpha");
  const bool trained = alpha != nullptr && alpha->is_number() && alpha->get<double>() > 0;
  block->confidence = fields.FlagOr("enable_confidence_head", speculators || trained);
  block->confidence_reads_markov =
      block->confidence && fields.FlagOr("confidence_head_with_markov", speculators);
  if (block->confidence_reads_markov && block->markov == MarkovKind::kNone) {
    fields.With("confidence_head_with_markov")
        .Fail("confidence_head_with_markov", "is true without a markov_rank; allowed: false");
  }
}

}  // namespace

void ReadBlockDrafter(NestedFields& fields, ModelConfig* config, StateDrafter* states) {
  RefuseOthers(fields);
  if (config->layers > kMostLayers) {
    fields.top().Fail("num_hidden_layers", absl::StrCat("is ", config->layers, "; allowed: 1 to ",
                                                        kMostLayers, " of a block drafter"));
    return;
  }
  BlockDrafter block;
  block.rows = fields.With("block_size").CountOr("block_size", 0, /*least=*/0);
  if (block.rows < 2 || block.rows > kMostRows) {
    fields.With("block_size")
        .Fail("block_size", absl::StrCat("is ", block.rows, "; allowed: 2 to ", kMostRows));
  }
  ReadWindow(fields, &states->windows);
  const bool dspark = states->kind == DrafterKind::kDSpark;
  block.from_anchor = fields.FlagOr("sample_from_anchor", dspark);
  block.causal = CausalLayers(fields, config->layers, states->windows);
  if (dspark) ReadMarkov(fields, &block);
  Fields& mask = fields.With("mask_token_id");
  config->mask_token = mask.CountOr("mask_token_id", kMaxCount, /*least=*/0);
  if (config->mask_token >= config->vocabulary) {
    mask.Fail("mask_token_id",
              absl::StrCat(mask.Find("mask_token_id") == nullptr
                               ? std::string("is missing")
                               : absl::StrCat("is ", config->mask_token),
                           "; allowed: ids below vocab_size, ", config->vocabulary));
  }
  states->layers = ReadBoundaries(fields.nested(), "target_layer_ids", IdsAre::kLayers);
  if (states->layers.empty()) {
    states->layers = ReadBoundaries(fields.top(), "target_layer_ids", IdsAre::kLayers);
  }
  if (states->layers.empty()) {
    states->layers =
        ReadBoundaries(fields.top(), "aux_hidden_state_layer_ids", IdsAre::kBoundaries);
  }
  states->block = std::move(block);
}

}  // namespace specfabric::model
