#include "model/checkpoint/drafter_fields.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "model/checkpoint/block_drafter_fields.h"
#include "model/checkpoint/nested_fields.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr char kLayerConfig[] = "transformer_layer_config";

// Flat: the fields of a language model, and some more. Nested: those of `speculators`; servers that
// read its EAGLE-3 take it to norm before the residual if that is not said. Qwen3Eagle3Model and
// Qwen3DSparkModel: DeepSpec's. Some classes of `speculators` have the names that others have flat
// configurations for.
constexpr auto kEagle3 = DrafterKind::kEagle3;
constexpr auto kDFlash = DrafterKind::kDFlash;
constexpr auto kDSpark = DrafterKind::kDSpark;
constexpr auto kMtp = DrafterKind::kMtp;
constexpr DrafterLayout kLayouts[] = {
    {"LlamaForCausalLMEagle3", kEagle3, "LlamaForCausalLM", false, false},
    {"Eagle3LlamaForCausalLM", kEagle3, "LlamaForCausalLM", false, false},
    {"Eagle3Speculator", kEagle3, nullptr, true, false},
    {"Eagle3DraftModel", kEagle3, nullptr, true, false},
    {"Qwen3Eagle3Model", kEagle3, "Qwen3ForCausalLM", false, true},
    {"DFlashDraftModel", kDFlash, "Qwen3ForCausalLM", false, false},
    {"DFlashSpeculator", kDFlash, nullptr, false, false},
    {"DSparkDraftModel", kDSpark, "Qwen3ForCausalLM", false, false},
    {"Qwen3DSparkModel", kDSpark, "Qwen3ForCausalLM", false, false},
    {"DSparkSpeculator", kDSpark, nullptr, false, false},
    {"MTPDraftModel", kMtp, nullptr, false, false}};

constexpr DrafterLayout kMtpLayouts[] = {
    {"MiMoForCausalLM", kMtp, "MiMoForCausalLM", false, false}};

const DrafterLayout* Find(absl::Span<const DrafterLayout> layouts,
                          const std::string& architecture) {
  const auto it = std::find_if(layouts.begin(), layouts.end(), [&](const DrafterLayout& layout) {
    return architecture == layout.architecture;
  });
  return it == layouts.end() ? nullptr : &*it;
}

// What would make another model of it.
void RefuseOthers(NestedFields& fields, const DrafterLayout& layout, const ModelConfig& config) {
  for (const char* name : {"pard_token", "ptd_token_id", "mask_token_id"}) {
    const Json* token = fields.With(name).Find(name);
    if (token == nullptr) continue;
    fields.With(name).Unsupported(name, Shown(*token),
                                  "none: drafters that predict in parallel "
                                  "(P-EAGLE) are not supported");
  }
  if (!fields.FlagOr("use_aux_hidden_state", true)) {
    fields.With("use_aux_hidden_state").Unsupported("use_aux_hidden_state", "false", "true");
  }
  if (fields.FlagOr("eh_proj_before_attn", false)) {
    fields.With("eh_proj_before_attn").Unsupported("eh_proj_before_attn", "true", "false");
  }
  if (layout.one_layer && config.layers != 1) {
    fields.top().Unsupported("num_hidden_layers", absl::StrCat(config.layers),
                             absl::StrCat("1 of a ", layout.architecture));
  }
}

void ReadEagle3(const DrafterLayout& layout, NestedFields& fields, const ModelConfig& config,
                StateDrafter* states) {
  RefuseOthers(fields, layout, config);
  states->fc_bias = fields.top().FlagOr("bias", false);
  states->norm_before_fc = fields.FlagOr("norm_before_fc", false);
  states->fc_norm = fields.FlagOr("fc_norm", false);
  states->norm_before_residual = fields.FlagOr("norm_before_residual", layout.norm_before_residual);
  states->norm_output =
      fields.FlagOr("return_hidden_post_norm", fields.FlagOr("norm_output", false));
  const auto read = [&](Fields& from, const char* name, IdsAre ids_are) {
    if (states->layers.empty()) states->layers = ReadBoundaries(from, name, ids_are);
  };
  read(fields.top(), "eagle_aux_hidden_state_layer_ids", IdsAre::kBoundaries);
  read(fields.nested(), "eagle_aux_hidden_state_layer_ids", IdsAre::kLayersIfTheFirstIsOne);
  read(fields.top(), "aux_hidden_state_layer_ids", IdsAre::kBoundaries);
  read(fields.top(), "target_layer_ids", IdsAre::kLayers);
  const int32_t count = fields.top().CountOr("num_aux_hidden_states", kDefaultStateLayers);
  if (states->layers.empty() && count != kDefaultStateLayers) {
    fields.top().Fail("num_aux_hidden_states",
                      absl::StrCat("is ", count, ", and which they are is not said; allowed: ",
                                   kDefaultStateLayers));
  }
}

// The window of each layer that has one. Drafters have such layers whatever use_sliding_window
// says.
absl::Status ReadWindows(Fields& fields, int32_t layers, std::vector<int32_t>* windows) {
  constexpr char kTypes[] = "layer_types";
  const Json* types = fields.Find(kTypes);
  if (types == nullptr) return fields.status();
  if (!types->is_array() || types->size() != static_cast<size_t>(layers)) {
    fields.Fail(kTypes, absl::StrCat("is ", Shown(*types), "; allowed: one for each of ", layers,
                                     " layers"));
    return fields.status();
  }
  windows->assign(layers, 0);
  for (int32_t i = 0; i < layers; ++i) {
    const Json& type = (*types)[i];
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      fields.Unsupported(kTypes, Shown(type), "full_attention, sliding_attention");
      break;
    }
    (*windows)[i] = fields.Count("sliding_window");
  }
  if (std::all_of(windows->begin(), windows->end(), [](int32_t w) { return w == 0; })) {
    windows->clear();
  }
  return fields.status();
}

// The fields of the layers are the target's, their number too: a drafter has one like its first.
// The same layer predicts all tokens, each from what the one before put out, whatever number of
// layers the checkpoint has for further ones.
void ReadMtp(const DrafterLayout& layout, ModelConfig* config, StateDrafter* states) {
  const bool in_target = layout.layers_of != nullptr;
  states->mtp = MtpDrafter{.in_target = in_target, .state_first = in_target};
  states->layers = {config->layers};
  states->target_hidden = config->hidden;
  states->norm_output = true;
  config->layers = 1;
  config->mask_token = base::kNoToken;
  if (!states->windows.empty()) states->windows = {states->windows.front()};
}

absl::Status CheckSizes(NestedFields& fields, const StateDrafter& states,
                        const ModelConfig& config) {
  if (states.norm_before_fc && states.fc_norm) {
    fields.With("fc_norm").Fail("fc_norm", "is true, and so is norm_before_fc; allowed: one");
  }
  if (states.draft_vocabulary > config.vocabulary) {
    fields.top().Fail("draft_vocab_size",
                      absl::StrCat("is ", states.draft_vocabulary, "; allowed: 1 to vocab_size, ",
                                   config.vocabulary));
  }
  if (states.layers.size() * states.target_hidden > static_cast<size_t>(kMaxCount)) {
    fields.top().Fail("target_hidden_size",
                      absl::StrCat("times ", states.layers.size(), " layers is above ", kMaxCount));
  }
  return fields.status();
}

}  // namespace

const DrafterLayout* FindDrafterLayout(const std::string& architecture) {
  return Find(kLayouts, architecture);
}

const DrafterLayout* FindMtpLayout(const std::string& architecture) {
  return Find(kMtpLayouts, architecture);
}

std::string DrafterArchitectures() {
  return absl::StrJoin(kLayouts, ", ", [](std::string* out, const DrafterLayout& layout) {
    absl::StrAppend(out, layout.architecture);
  });
}

absl::StatusOr<LayerFields> FindLayerFields(const DrafterLayout& layout, const Json& config,
                                            const std::string& where) {
  Fields top(config, where);
  if (layout.layers_of != nullptr && top.Find(kSpeculatorsType) == nullptr) {
    return LayerFields{&config, where, layout.layers_of};
  }
  const Json* layers = top.Find(kLayerConfig);
  if (layers == nullptr || !layers->is_object()) {
    top.Fail(kLayerConfig, layers == nullptr ? "is missing" : "is not an object");
    return top.status();
  }
  LayerFields found = {layers, absl::StrCat(where, ": ", kLayerConfig), ""};
  Fields fields(*layers, found.where);
  const std::string type = fields.TextOr("model_type", "qwen3");
  found.architecture = type == "llama" ? "LlamaForCausalLM" : "Qwen3ForCausalLM";
  if (type != "llama" && type != "qwen3") fields.Unsupported("model_type", type, "llama, qwen3");
  if (!fields.status().ok()) return fields.status();
  return found;
}

absl::Status ReadStateDrafter(const DrafterLayout& layout, const LayerFields& layers,
                              const Json& json, const std::string& where, ModelConfig* config) {
  // The head that a drafter does not have is its target's.
  config->tied_embeddings = false;
  StateDrafter states;
  states.kind = layout.kind;
  Fields layer_fields(*layers.object, layers.where);
  absl::Status status = ReadWindows(layer_fields, config->layers, &states.windows);
  // That of the layers is heeded, and is none of the context's.
  config->sliding_window = 0;
  if (!status.ok()) return status;
  NestedFields fields(json, where,
                      states.kind == DrafterKind::kEagle3 ? kEagleConfig : kDFlashConfig);
  states.target_hidden = fields.top().CountOr("target_hidden_size", config->hidden);
  states.draft_vocabulary = fields.top().CountOr("draft_vocab_size", config->vocabulary);
  if (states.kind == kEagle3) {
    ReadEagle3(layout, fields, *config, &states);
  } else if (states.kind == kMtp) {
    ReadMtp(layout, config, &states);
  } else {
    ReadBlockDrafter(fields, config, &states);
  }
  if (status = CheckSizes(fields, states, *config); !status.ok()) return status;
  config->states = std::move(states);
  return absl::OkStatus();
}

}  // namespace specfabric::model
