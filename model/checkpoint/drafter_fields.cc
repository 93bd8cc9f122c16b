#include "model/checkpoint/drafter_fields.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr char kLayerConfig[] = "transformer_layer_config";
constexpr char kEagleConfig[] = "eagle_config";

// Flat: a Llama configuration and some fields more, by two names for the same. Nested: those of
// `speculators`, which the servers that read them take to norm before the residual if that is not
// said. Qwen3Eagle3Model: DeepSpec's.
constexpr DrafterLayout kLayouts[] = {{"LlamaForCausalLMEagle3", "LlamaForCausalLM", false, false},
                                      {"Eagle3LlamaForCausalLM", "LlamaForCausalLM", false, false},
                                      {"Eagle3Speculator", nullptr, true, false},
                                      {"Eagle3DraftModel", nullptr, true, false},
                                      {"Qwen3Eagle3Model", "Qwen3ForCausalLM", false, true}};

// Ids of the target's layers are numbers of boundaries, or of the layers after which they lie, and
// nothing but the field's name says which.
enum class IdsAre { kBoundaries, kLayers, kLayersIfTheFirstIsOne };

std::vector<int32_t> ReadBoundaries(Fields& fields, const char* name, IdsAre ids_are) {
  const Json* list = fields.Find(name);
  if (list == nullptr) return {};
  const int32_t least = ids_are == IdsAre::kLayers ? -1 : 0;
  const auto is_id = [&](const Json& id) {
    return id.is_number_integer() && id.get<double>() >= least && id.get<double>() < kMaxCount;
  };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_id)) {
    fields.Fail(name, absl::StrCat("is ", Shown(*list), "; allowed: a list of integers from ",
                                   least, " to ", kMaxCount - 1));
    return {};
  }
  auto boundaries = list->get<std::vector<int32_t>>();
  if (boundaries.empty()) return boundaries;
  const bool are_layers = ids_are == IdsAre::kLayers ||
                          (ids_are == IdsAre::kLayersIfTheFirstIsOne && boundaries.front() == 1);
  if (are_layers) {
    for (int32_t& boundary : boundaries) ++boundary;
  }
  return boundaries;
}

// config.json with its object `eagle_config`, where some exports have some of the fields.
class DrafterFields {
 public:
  DrafterFields(const Json& json, const std::string& where)
      : top_(json, where), eagle_(EagleConfig(json), absl::StrCat(where, ": ", kEagleConfig)) {
    const Json* eagle = top_.Find(kEagleConfig);
    if (eagle != nullptr && !eagle->is_object()) top_.Fail(kEagleConfig, "is not an object");
  }

  Fields& top() { return top_; }
  Fields& eagle() { return eagle_; }
  Fields& With(const char* name) { return eagle_.Find(name) == nullptr ? top_ : eagle_; }
  bool FlagOr(const char* name, bool otherwise) { return With(name).FlagOr(name, otherwise); }
  absl::Status status() const { return top_.status().ok() ? eagle_.status() : top_.status(); }

 private:
  static const Json& EagleConfig(const Json& json) {
    static const Json* const kNone = new Json(Json::object());
    const auto it = json.find(kEagleConfig);
    return it == json.end() || !it->is_object() ? *kNone : *it;
  }

  Fields top_, eagle_;
};

// What would make another model of it.
void RefuseOthers(DrafterFields& fields, const DrafterLayout& layout, const ModelConfig& config) {
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

absl::Status CheckSizes(DrafterFields& fields, const StateDrafter& states,
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
  const auto it = std::find_if(
      std::begin(kLayouts), std::end(kLayouts),
      [&](const DrafterLayout& layout) { return architecture == layout.architecture; });
  return it == std::end(kLayouts) ? nullptr : it;
}

std::string DrafterArchitectures() {
  return absl::StrJoin(kLayouts, ", ", [](std::string* out, const DrafterLayout& layout) {
    absl::StrAppend(out, layout.architecture);
  });
}

absl::StatusOr<LayerFields> FindLayerFields(const DrafterLayout& layout, const Json& config,
                                            const std::string& where) {
  if (layout.layers_of != nullptr) return LayerFields{&config, where, layout.layers_of};
  Fields top(config, where);
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
  // Which such a drafter has whatever use_sliding_window says.
  const Json* types = fields.Find("layer_types");
  if (types != nullptr && types->is_array() &&
      std::find(types->begin(), types->end(), Json("sliding_attention")) != types->end()) {
    fields.Unsupported("layer_types", "sliding_attention", "full_attention");
  }
  if (!fields.status().ok()) return fields.status();
  return found;
}

absl::Status ReadStateDrafter(const DrafterLayout& layout, const Json& json,
                              const std::string& where, ModelConfig* config) {
  DrafterFields fields(json, where);
  RefuseOthers(fields, layout, *config);
  // The head that a drafter does not have is its target's.
  config->tied_embeddings = false;
  StateDrafter states;
  states.target_hidden = fields.top().CountOr("target_hidden_size", config->hidden);
  states.draft_vocabulary = fields.top().CountOr("draft_vocab_size", config->vocabulary);
  states.fc_bias = fields.top().FlagOr("bias", false);
  states.norm_before_fc = fields.FlagOr("norm_before_fc", false);
  states.fc_norm = fields.FlagOr("fc_norm", false);
  states.norm_before_residual = fields.FlagOr("norm_before_residual", layout.norm_before_residual);
  states.norm_output =
      fields.FlagOr("return_hidden_post_norm", fields.FlagOr("norm_output", false));

  const auto read = [&](Fields& from, const char* name, IdsAre ids_are) {
    if (states.layers.empty()) states.layers = ReadBoundaries(from, name, ids_are);
  };
  read(fields.top(), "eagle_aux_hidden_state_layer_ids", IdsAre::kBoundaries);
  read(fields.eagle(), "eagle_aux_hidden_state_layer_ids", IdsAre::kLayersIfTheFirstIsOne);
  read(fields.top(), "aux_hidden_state_layer_ids", IdsAre::kBoundaries);
  read(fields.top(), "target_layer_ids", IdsAre::kLayers);
  const int32_t count = fields.top().CountOr("num_aux_hidden_states", kDefaultStateLayers);
  if (states.layers.empty() && count != kDefaultStateLayers) {
    fields.top().Fail("num_aux_hidden_states",
                      absl::StrCat("is ", count, ", and which they are is not said; allowed: ",
                                   kDefaultStateLayers));
  }
  if (absl::Status status = CheckSizes(fields, states, *config); !status.ok()) return status;
  config->states = std::move(states);
  return absl::OkStatus();
}

}  // namespace specfabric::model
