#include "model/config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr char kArchitectures[] =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM";
constexpr char kRopeTypes[] = "default, linear, llama3, yarn";
constexpr int kMaxHeadDim = 256;
constexpr int32_t kMaxCount = 1 << 24;  // keeps every product of two of them within 64 bits

absl::StatusOr<Json> ReadJsonObject(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::ostringstream text;
  text << file.rdbuf();
  Json json = Json::parse(text.str(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  }
  return json;
}

// Typed fields of one JSON object. null counts as absent, as it does in transformers. The first
// field that is not what it should be is remembered in status().
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const absl::Status& status() const { return status_; }

  const Json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int32_t Count(const char* name) {
    if (Find(name) == nullptr) {
      Fail(name, "is missing");
      return 0;
    }
    return CountOr(name, 0);
  }

  int32_t CountOr(const char* name, int32_t otherwise) {
    const Json* value = Find(name);
    if (value == nullptr) return otherwise;
    const double number = value->is_number() ? value->get<double>() : 0.0;
    if (!value->is_number_integer() || number < 1 || number > kMaxCount) {
      Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: an integer from 1 to ", kMaxCount));
      return otherwise;
    }
    return static_cast<int32_t>(number);
  }

  double PositiveOr(const char* name, double otherwise) {
    const Json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() > 0.0)) {
      Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: a number above 0"));
      return otherwise;
    }
    return value->get<double>();
  }

  // Also above 0 and finite once rounded.
  float PositiveFloatOr(const char* name, float otherwise) {
    constexpr double kLeast = std::numeric_limits<float>::min();
    constexpr double kMost = std::numeric_limits<float>::max();
    const double value = PositiveOr(name, otherwise);
    if (value < kLeast || value > kMost) {
      Fail(name, absl::StrCat("is ", value, "; allowed: a number from ", kLeast, " to ", kMost));
      return otherwise;
    }
    return static_cast<float>(value);
  }

  bool FlagOr(const char* name, bool otherwise) {
    const Json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: true, false"));
      return otherwise;
    }
    return value->get<bool>();
  }

  std::string TextOr(const char* name, const std::string& otherwise) {
    const Json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) {
      Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: a string"));
      return otherwise;
    }
    return value->get<std::string>();
  }

  void Fail(const char* name, const std::string& what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", name, " ", what));
    }
  }

  void Unsupported(const char* name, const std::string& given, const std::string& allowed) {
    if (status_.ok()) {
      status_ = absl::UnimplementedError(
          absl::StrCat(where_, ": ", name, " '", given, "' is not supported; allowed: ", allowed));
    }
  }

 private:
  static std::string Shown(const Json& value) {
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    if (text.size() > 60) text = absl::StrCat(text.substr(0, 60), "...");
    return text;
  }

  const Json& object_;
  std::string where_;
  absl::Status status_;
};

std::string Architecture(Fields& fields) {
  const Json* list = fields.Find("architectures");
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) {
    fields.Fail("architectures", absl::StrCat("names none; allowed: one of ", kArchitectures));
    return "";
  }
  return list->front().get<std::string>();
}

// What differs between the four families apart from numbers.
void ReadFamily(Fields& fields, ModelConfig* config) {
  const std::string& name = config->architecture;
  const bool attention_bias = fields.FlagOr("attention_bias", false);
  if (name == "LlamaForCausalLM") {
    config->qkv_bias = config->output_bias = attention_bias;
    config->mlp_bias = fields.FlagOr("mlp_bias", false);
  } else if (name == "Qwen2ForCausalLM") {
    config->qkv_bias = true;
  } else if (name == "Qwen3ForCausalLM") {
    config->qkv_bias = config->output_bias = attention_bias;
    config->qk_norm = true;
  } else if (name != "MistralForCausalLM") {
    fields.Unsupported("architecture", name, kArchitectures);
  }
  const std::string activation = fields.TextOr("hidden_act", "silu");
  if (activation != "silu") fields.Unsupported("hidden_act", activation, "silu");
}

void ReadShape(Fields& fields, ModelConfig* config) {
  config->vocabulary = fields.Count("vocab_size");
  config->hidden = fields.Count("hidden_size");
  config->intermediate = fields.Count("intermediate_size");
  config->layers = fields.Count("num_hidden_layers");
  config->heads = fields.Count("num_attention_heads");
  config->kv_heads = fields.CountOr("num_key_value_heads", config->heads);
  config->context = fields.Count("max_position_embeddings");
  config->rms_epsilon = fields.PositiveFloatOr("rms_norm_eps", 1e-6f);
  config->tied_embeddings = fields.FlagOr("tie_word_embeddings", false);
  if (!fields.status().ok()) return;

  // transformers gives Qwen3 a head size of its own; the others divide the hidden size.
  const int32_t implied =
      config->architecture == "Qwen3ForCausalLM" ? 128 : config->hidden / config->heads;
  config->head_dim = fields.CountOr("head_dim", implied);
  if (config->head_dim < 2 || config->head_dim % 2 != 0 || config->head_dim > kMaxHeadDim) {
    fields.Fail("head_dim", absl::StrCat("is ", config->head_dim,
                                         "; allowed: even numbers from 2 to ", kMaxHeadDim));
  }
  if (int64_t{config->heads} * config->head_dim > kMaxCount) {
    fields.Fail("num_attention_heads", absl::StrCat("times head_dim is above ", kMaxCount));
  }
  if (config->heads % config->kv_heads != 0) {
    fields.Fail("num_attention_heads",
                absl::StrCat("is ", config->heads, ", not a multiple of num_key_value_heads, ",
                             config->kv_heads));
  }
}

// The object that holds rotary settings: `rope_scaling` of older configs, `rope_parameters` of
// transformers 5, there possibly one object for each layer type.
const Json* RopeObject(Fields& fields) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = fields.Find(name);
    if (value == nullptr) continue;
    if (!value->is_object()) {
      fields.Fail(name, "is not an object");
      return nullptr;
    }
    if (value->empty()) continue;
    const auto nested = value->find("full_attention");
    return nested != value->end() && nested->is_object() ? &*nested : value;
  }
  return nullptr;
}

absl::StatusOr<RopeConfig> ReadRope(Fields& top, int32_t context, const std::string& where) {
  RopeConfig rope;
  rope.theta = top.PositiveOr("rope_theta", 10000.0);
  double partial = top.PositiveOr("partial_rotary_factor", 1.0);
  const Json* object = RopeObject(top);
  if (!top.status().ok()) return top.status();
  const Json empty = Json::object();
  Fields fields(object == nullptr ? empty : *object, absl::StrCat(where, ": rope parameters"));

  rope.theta = fields.PositiveOr("rope_theta", rope.theta);
  partial = fields.PositiveOr("partial_rotary_factor", partial);
  if (partial != 1.0) fields.Unsupported("partial_rotary_factor", absl::StrCat(partial), "1");

  const std::string type = fields.TextOr("rope_type", fields.TextOr("type", "default"));
  if (type == "default") {
    rope.kind = RopeKind::kDefault;
  } else if (type == "linear") {
    rope.kind = RopeKind::kLinear;
  } else if (type == "llama3") {
    rope.kind = RopeKind::kLlama3;
  } else if (type == "yarn") {
    rope.kind = RopeKind::kYarn;
  } else {
    fields.Unsupported("rope_type", type, kRopeTypes);
  }
  if (rope.kind == RopeKind::kDefault) {
    if (!fields.status().ok()) return fields.status();
    return rope;
  }

  if (rope.kind == RopeKind::kLlama3 || rope.kind == RopeKind::kYarn) {
    rope.original_context =
        fields.CountOr("original_max_position_embeddings",
                       top.CountOr("original_max_position_embeddings", context));
  }
  if (fields.Find("factor") == nullptr && rope.kind == RopeKind::kYarn) {
    rope.factor = static_cast<double>(context) / rope.original_context;
  } else if (fields.Find("factor") == nullptr) {
    fields.Fail("factor", absl::StrCat("is missing; rope_type '", type, "' needs it"));
  } else {
    rope.factor = fields.PositiveOr("factor", 1.0);
  }
  if (rope.kind == RopeKind::kLlama3) {
    rope.low_freq_factor = fields.PositiveOr("low_freq_factor", rope.low_freq_factor);
    rope.high_freq_factor = fields.PositiveOr("high_freq_factor", rope.high_freq_factor);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      fields.Fail("high_freq_factor",
                  absl::StrCat("is ", rope.high_freq_factor, "; allowed: above low_freq_factor, ",
                               rope.low_freq_factor));
    }
  }
  if (rope.kind == RopeKind::kYarn) {
    rope.beta_fast = fields.PositiveOr("beta_fast", rope.beta_fast);
    rope.beta_slow = fields.PositiveOr("beta_slow", rope.beta_slow);
    rope.attention_factor = fields.PositiveOr("attention_factor", 0.0);
    rope.mscale = fields.PositiveOr("mscale", 0.0);
    rope.mscale_all_dim = fields.PositiveOr("mscale_all_dim", 0.0);
    rope.truncate = fields.FlagOr("truncate", true);
    if (rope.theta <= 1.0) {
      fields.Fail("rope_theta", absl::StrCat("is ", rope.theta, "; allowed for yarn: above 1"));
    }
  }
  if (!top.status().ok()) return top.status();
  if (!fields.status().ok()) return fields.status();
  return rope;
}

// The window that some layer really has, or 0. Only Mistral and the Qwens look at these fields.
int32_t SlidingWindow(Fields& fields, const ModelConfig& config) {
  const int32_t window = fields.CountOr("sliding_window", 0);
  if (config.architecture == "MistralForCausalLM") return window;
  if (config.architecture == "LlamaForCausalLM") return 0;
  if (window == 0 || !fields.FlagOr("use_sliding_window", false)) return 0;
  if (const Json* types = fields.Find("layer_types"); types != nullptr && types->is_array()) {
    return std::find(types->begin(), types->end(), Json("sliding_attention")) != types->end()
               ? window
               : 0;
  }
  // max_window_layers counts the layers, from the bottom, that attend to everything.
  return fields.CountOr("max_window_layers", 28) < config.layers ? window : 0;
}

void ReadWindow(Fields& fields, ModelConfig* config) {
  config->sliding_window = SlidingWindow(fields, *config);
  if (config->sliding_window > 0 && config->sliding_window < config->context) {
    fields.Unsupported(
        "sliding_window", absl::StrCat(config->sliding_window),
        absl::StrCat("null, or at least max_position_embeddings, ", config->context));
  }
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

// generation_config.json may name further ids that end a text (chat models do).
absl::Status AddGenerationEosIds(const std::string& model_dir, std::vector<base::TokenId>* ids) {
  const std::string path = model_dir + "/generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  absl::StatusOr<Json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();
  Fields fields(*json, path);
  AddEosIds(fields, ids);
  return fields.status();
}

}  // namespace

absl::StatusOr<DataType> ParseDataType(const std::string& name) {
  if (name == "float32") return DataType::kFloat32;
  if (name == "bfloat16") return DataType::kBFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("data type '", name, "' is not known; allowed: float32, bfloat16"));
}

const char* Name(DataType type) { return type == DataType::kFloat32 ? "float32" : "bfloat16"; }

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) {
    return absl::NotFoundError(absl::StrCat("model folder '", model_dir, "' does not exist"));
  }
  const std::string path = model_dir + "/config.json";
  absl::StatusOr<Json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();

  Fields fields(*json, path);
  ModelConfig config;
  config.architecture = Architecture(fields);
  if (!fields.status().ok()) return fields.status();
  ReadFamily(fields, &config);
  if (!fields.status().ok()) return fields.status();
  ReadShape(fields, &config);
  if (!fields.status().ok()) return fields.status();
  ReadWindow(fields, &config);
  config.checkpoint_type = CheckpointType(fields);
  AddEosIds(fields, &config.eos_ids);
  if (!fields.status().ok()) return fields.status();

  absl::StatusOr<RopeConfig> rope = ReadRope(fields, config.context, path);
  if (!rope.ok()) return rope.status();
  config.rope = *rope;
  if (absl::Status status = AddGenerationEosIds(model_dir, &config.eos_ids); !status.ok()) {
    return status;
  }
  return config;
}

}  // namespace specfabric::model
