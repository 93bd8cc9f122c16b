#include "model/checkpoint/config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/drafter_fields.h"
#include "model/checkpoint/json_fields.h"
#include "model/checkpoint/quantization.h"
#include "model/checkpoint/rope_config.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr int kMaxHeadDim = 256;

// What a field that config.json leaves out is, where the families differ: as transformers 5's
// configuration classes have it, which fix what a checkpoint means. 0: none.
struct FamilyDefaults {
  const char* architecture;
  int32_t positions;
  int32_t kv_heads;  // 0: as many as heads
  int32_t head_dim;  // 0: hidden size / heads
  int32_t sliding_window;
  base::TokenId eos;
};
constexpr FamilyDefaults kFamilies[] = {{"LlamaForCausalLM", 2048, 0, 0, 0, 2},
                                        {"MistralForCausalLM", 131072, 8, 0, 4096, 2},
                                        {"Qwen2ForCausalLM", 32768, 32, 0, 4096, 0},
                                        {"MiMoForCausalLM", 32768, 32, 0, 4096, 0},
                                        {"Qwen3ForCausalLM", 32768, 32, 128, 4096, 0}};

std::string Architectures() {
  const auto name = [](std::string* out, const FamilyDefaults& family) {
    absl::StrAppend(out, family.architecture);
  };
  return absl::StrCat(absl::StrJoin(kFamilies, ", ", name), ", ", DrafterArchitectures());
}

const FamilyDefaults* FindFamily(const std::string& architecture) {
  const auto it = std::find_if(
      std::begin(kFamilies), std::end(kFamilies),
      [&](const FamilyDefaults& family) { return architecture == family.architecture; });
  return it == std::end(kFamilies) ? nullptr : it;
}

std::string Architecture(Fields& fields) {
  const Json* list = fields.Find("architectures");
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) {
    fields.Fail("architectures", absl::StrCat("names none; allowed: one of ", Architectures()));
    return "";
  }
  return list->front().get<std::string>();
}

// What differs between the families apart from numbers. A MiMo is a Qwen2, with layers behind its
// own that predict several tokens.
void ReadFamily(Fields& fields, const FamilyDefaults& family, ModelConfig* config) {
  const std::string name = family.architecture;
  const bool attention_bias = fields.FlagOr("attention_bias", false);
  if (name == "LlamaForCausalLM") {
    config->qkv_bias = config->output_bias = attention_bias;
    config->mlp_bias = fields.FlagOr("mlp_bias", false);
  } else if (name == "Qwen2ForCausalLM" || name == "MiMoForCausalLM") {
    config->qkv_bias = true;
  } else if (name == "Qwen3ForCausalLM") {
    config->qkv_bias = config->output_bias = attention_bias;
    config->qk_norm = true;
  }
  // Two names of one function.
  const std::string activation = fields.TextOr("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.Unsupported("hidden_act", activation, "silu, swish");
  }
}

int32_t KvHeads(Fields& fields, const FamilyDefaults& family, int32_t heads) {
  const bool absent = fields.IsAbsent("num_key_value_heads");
  // null is as many as heads in every family.
  const int32_t otherwise = absent && family.kv_heads != 0 ? family.kv_heads : heads;
  const int32_t kv_heads = fields.CountOr("num_key_value_heads", otherwise);
  if (heads % kv_heads != 0) {
    fields.Fail("num_attention_heads",
                absl::StrCat("is ", heads, ", not a multiple of num_key_value_heads, ", kv_heads,
                             absent ? ", which is the default" : ""));
  }
  return kv_heads;
}

void ReadShape(Fields& fields, const FamilyDefaults& family, ModelConfig* config) {
  config->vocabulary = fields.Count("vocab_size");
  config->hidden = fields.Count("hidden_size");
  config->intermediate = fields.Count("intermediate_size");
  config->layers = fields.Count("num_hidden_layers");
  config->heads = fields.Count("num_attention_heads");
  config->context = fields.CountOr("max_position_embeddings", family.positions);
  config->rms_epsilon = fields.PositiveFloatOr("rms_norm_eps", 1e-6f);
  config->tied_embeddings = fields.FlagOr("tie_word_embeddings", false);
  if (!fields.status().ok()) return;

  config->kv_heads = KvHeads(fields, family, config->heads);
  config->head_dim = fields.CountOr(
      "head_dim", family.head_dim != 0 ? family.head_dim : config->hidden / config->heads);
  if (config->head_dim < 2 || config->head_dim % 2 != 0 || config->head_dim > kMaxHeadDim) {
    fields.Fail("head_dim", absl::StrCat("is ", config->head_dim,
                                         "; allowed: even numbers from 2 to ", kMaxHeadDim));
  }
  if (int64_t{config->heads} * config->head_dim > kMaxCount) {
    fields.Fail("num_attention_heads", absl::StrCat("times head_dim is above ", kMaxCount));
  }
}

// The window that some layer really has, or 0. Only Mistral and the Qwens look at these fields.
int32_t SlidingWindow(Fields& fields, const FamilyDefaults& family, const ModelConfig& config) {
  if (family.sliding_window == 0) return 0;
  const bool optional = family.architecture != std::string("MistralForCausalLM");
  if (optional && !fields.FlagOr("use_sliding_window", false)) return 0;
  // null is none.
  const int32_t otherwise = fields.IsAbsent("sliding_window") ? family.sliding_window : 0;
  const int32_t window = fields.CountOr("sliding_window", otherwise);
  if (window == 0 || !optional) return window;
  if (const Json* types = fields.Find("layer_types"); types != nullptr && types->is_array()) {
    return std::find(types->begin(), types->end(), Json("sliding_attention")) != types->end()
               ? window
               : 0;
  }
  // max_window_layers counts the layers, from the bottom, that attend to everything.
  return fields.CountOr("max_window_layers", 28, /*least=*/0) < config.layers ? window : 0;
}

// By either of the names that exports of PARD have for it.
base::TokenId MaskToken(Fields& fields, int32_t vocabulary) {
  for (const char* const name : {"pard_token", "ptd_token_id"}) {
    if (fields.Find(name) == nullptr) continue;
    const int32_t token = fields.CountOr(name, 0, /*least=*/0);
    if (token < vocabulary) return token;
    fields.Fail(name, absl::StrCat("is ", token, "; allowed: ids below vocab_size, ", vocabulary));
  }
  return base::kNoToken;
}

DataType CheckpointType(Fields& fields) {
  const std::string name = fields.TextOr("dtype", fields.TextOr("torch_dtype", "float32"));
  // float16 checkpoints are held as float32: bfloat16 would lose three of their bits.
  return name == "bfloat16" ? DataType::kBFloat16 : DataType::kFloat32;
}

void AddEosIds(Fields& fields, std::vector<base::TokenId>* ids) {
  const Json* value = fields.Find("eos_token_id");
  if (value == nullptr) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      fields.Fail("eos_token_id", "is not a token id or a list of token ids");
      return;
    }
    const auto token = id.get<base::TokenId>();
    if (std::find(ids->begin(), ids->end(), token) == ids->end()) ids->push_back(token);
  }
}

// generation_config.json may name further ids that end a text (chat models do). Where no file
// speaks of any, the family's own ends it.
absl::Status ReadEosIds(Fields& fields, const FamilyDefaults& family, const std::string& model_dir,
                        std::vector<base::TokenId>* ids) {
  AddEosIds(fields, ids);
  if (!fields.status().ok()) return fields.status();
  bool absent = fields.IsAbsent("eos_token_id");
  const std::string path = model_dir + "/generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    absl::StatusOr<Json> json = ReadJsonObject(path);
    if (!json.ok()) return json.status();
    Fields generation(*json, path);
    AddEosIds(generation, ids);
    if (!generation.status().ok()) return generation.status();
    absent = absent && generation.IsAbsent("eos_token_id");
  }
  if (absent && family.eos != 0) ids->push_back(family.eos);
  return absl::OkStatus();
}

// What any model's layers have.
absl::Status ReadLayers(Fields& fields, const FamilyDefaults& family, ModelConfig* config) {
  ReadFamily(fields, family, config);
  ReadShape(fields, family, config);
  if (!fields.status().ok()) return fields.status();
  config->sliding_window = SlidingWindow(fields, family, *config);
  config->mask_token = MaskToken(fields, config->vocabulary);
  if (!fields.status().ok()) return fields.status();

  const int32_t positions = config->context;
  absl::StatusOr<RopeConfig> rope = ReadRope(fields, positions, fields.where());
  if (!rope.ok()) return rope.status();
  config->rope = *rope;
  absl::StatusOr<int32_t> context = ContextOf(config->rope, positions, fields.where());
  if (!context.ok()) return context.status();
  config->context = *context;
  return absl::OkStatus();
}

// Layers of a checkpoint, behind its own, that predict several tokens.
constexpr char kMtpLayers[] = "num_nextn_predict_layers";

std::string ConfigPath(const std::string& model_dir) { return model_dir + "/config.json"; }

absl::StatusOr<Json> ReadConfig(const std::string& model_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) {
    return absl::NotFoundError(absl::StrCat("model folder '", model_dir, "' does not exist"));
  }
  return ReadJsonObject(ConfigPath(model_dir));
}

// A model of this architecture; layout: of a drafter that reads states, or null.
absl::StatusOr<ModelConfig> ReadModel(const Json& json, const std::string& model_dir,
                                      const std::string& architecture,
                                      const DrafterLayout* layout) {
  const std::string path = ConfigPath(model_dir);
  Fields top(json, path);
  ModelConfig config;
  config.architecture = architecture;
  LayerFields layers = {&json, path, architecture};
  if (layout != nullptr) {
    absl::StatusOr<LayerFields> found = FindLayerFields(*layout, json, path);
    if (!found.ok()) return found.status();
    layers = *std::move(found);
  }
  const FamilyDefaults* family = FindFamily(layers.architecture);
  if (family == nullptr) top.Unsupported("architecture", config.architecture, Architectures());
  if (!top.status().ok()) return top.status();
  if (absl::Status status = CheckNotQuantized(json, model_dir); !status.ok()) return status;
  Fields fields(*layers.object, layers.where);
  if (absl::Status status = ReadLayers(fields, *family, &config); !status.ok()) return status;
  config.checkpoint_type = CheckpointType(top);
  if (!top.status().ok()) return top.status();
  absl::Status eos = ReadEosIds(fields, *family, model_dir, &config.eos_ids);
  if (!eos.ok()) return eos;
  if (layout != nullptr) {
    absl::Status status = ReadStateDrafter(*layout, layers, json, path, &config);
    if (!status.ok()) return status;
  }
  return config;
}

// A model, or a drafter, of the architecture that it names.
absl::StatusOr<ModelConfig> ReadNamed(const Json& json, const std::string& model_dir) {
  Fields top(json, ConfigPath(model_dir));
  const std::string architecture = Architecture(top);
  if (!top.status().ok()) return top.status();
  return ReadModel(json, model_dir, architecture, FindDrafterLayout(architecture));
}

}  // namespace

absl::StatusOr<DataType> ParseDataType(const std::string& name) {
  if (name == "float32") return DataType::kFloat32;
  if (name == "bfloat16") return DataType::kBFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("data type '", name, "' is not known; allowed: float32, bfloat16"));
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  const absl::StatusOr<Json> json = ReadConfig(model_dir);
  if (!json.ok()) return json.status();
  return ReadNamed(*json, model_dir);
}

absl::StatusOr<ModelConfig> LoadDraftConfig(const std::string& model_dir,
                                            const std::string& target_dir) {
  const absl::StatusOr<Json> json = ReadConfig(model_dir);
  if (!json.ok()) return json.status();
  absl::StatusOr<ModelConfig> config = ReadNamed(*json, model_dir);
  if (!config.ok() || config->states || target_dir.empty()) return config;
  Fields top(*json, ConfigPath(model_dir));
  const int32_t further = top.CountOr(kMtpLayers, 0, /*least=*/0);
  if (!top.status().ok()) return top.status();
  if (further == 0) return config;
  const absl::StatusOr<Json> of_target = ReadConfig(target_dir);
  if (!of_target.ok()) return of_target.status();
  if (*json != *of_target) return config;
  const DrafterLayout* layout = FindMtpLayout(config->architecture);
  if (layout != nullptr) return ReadModel(*json, model_dir, config->architecture, layout);
  top.Unsupported(kMtpLayers, absl::StrCat(further),
                  absl::StrCat("0 in a ", config->architecture,
                               " that drafts for itself, or the layers of a MiMoForCausalLM"));
  return top.status();
}

absl::StatusOr<int32_t> ServedContext(const ModelConfig& config, int32_t most) {
  const int32_t context = most == 0 ? config.context : std::min(most, config.context);
  if (config.sliding_window == 0 || config.sliding_window >= context) return context;
  return absl::UnimplementedError(absl::StrCat(
      "sliding_window ", config.sliding_window, " is shorter than the context to serve, ", context,
      ": attention within a window is not supported; allowed: a context of at most ",
      config.sliding_window, ", as with --max_context=", config.sliding_window));
}

}  // namespace specfabric::model
