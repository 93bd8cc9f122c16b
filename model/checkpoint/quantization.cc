#include "model/checkpoint/quantization.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/json_fields.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

// Where a tool says that it has quantized a checkpoint, and whose place it is if no method is
// named.
struct Place {
  const char* name;
  const char* method;
};
constexpr Place kKeys[] = {  // of config.json
    {"quantization_config", "a method that it does not name"},
    {"compression_config", "compressed-tensors"},
    {"quantization", "MLX"}};
constexpr Place kFiles[] = {  // beside it
    {"hf_quant_config.json", "ModelOpt"},
    {"quantize_config.json", "GPTQ"},
    {"quant_config.json", "AWQ"}};

constexpr const char* kMethodKeys[] = {"quant_method", "quant_algo", "load_in_4bit",
                                       "load_in_8bit"};
constexpr const char* kDetailKeys[] = {"bits",    "w_bit",      "format",     "fmt",
                                       "version", "quant_algo", "group_size", "q_group_size"};

std::optional<std::string> MethodOf(const Json& object) {
  for (const char* key : kMethodKeys) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    if (it->is_string()) return Shown(*it);
    if (it->is_boolean() && it->get<bool>()) return "bitsandbytes";
  }
  return std::nullopt;
}

// E.g. "gptq" (bits 4, group_size 128).
std::string Described(const Json& value, const std::string& otherwise) {
  if (!value.is_object()) return Shown(value);
  const auto inner = value.find("quantization");  // ModelOpt's file: beside who wrote it
  const Json& object = inner != value.end() && inner->is_object() ? *inner : value;
  std::vector<std::string> details;
  for (const char* key : kDetailKeys) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null() || it->is_structured()) continue;
    details.push_back(absl::StrCat(key, " ", Shown(*it)));
  }
  std::string text = MethodOf(object).value_or(otherwise);
  if (!details.empty()) absl::StrAppend(&text, " (", absl::StrJoin(details, ", "), ")");
  return text;
}

absl::Status Refusal(const std::string& where, const Json& value, const char* method) {
  return absl::UnimplementedError(
      absl::StrCat(where, " says that the weights are quantized with ", Described(value, method),
                   ", which is not supported; allowed: checkpoints of F32, BF16 or F16 weights"));
}

absl::Status CheckObject(const Json& object, const std::string& where) {
  for (const Place& key : kKeys) {
    const auto it = object.find(key.name);
    if (it != object.end() && !it->is_null()) {
      return Refusal(absl::StrCat(where, ": ", key.name), *it, key.method);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNotQuantized(const Json& config, const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/config.json");
  if (absl::Status status = CheckObject(config, path); !status.ok()) return status;
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) {
    absl::Status status = CheckObject(*text, absl::StrCat(path, ": text_config"));
    if (!status.ok()) return status;
  }
  for (const Place& place : kFiles) {
    const std::string file = absl::StrCat(model_dir, "/", place.name);
    std::error_code error;
    if (!std::filesystem::exists(file, error)) continue;
    const absl::StatusOr<Json> json = ReadJsonObject(file);
    if (!json.ok()) return json.status();
    return Refusal(file, *json, place.method);
  }
  return absl::OkStatus();
}

bool IsQuantizationTensor(std::string_view name) {
  // GPTQ, AWQ, AQLM; compressed-tensors, ModelOpt, fp8; bitsandbytes; EETQ, quanto, HQQ, MLX.
  constexpr std::string_view kLast[] = {
      "qweight",       "qzeros",           "scales",        "zeros",        "g_idx",
      "codes",         "codebooks",        "weight_packed", "weight_shape", "weight_g_idx",
      "weight_format", "weight_scales",    "SCB",           "absmax",       "quant_map",
      "W_q",           "weight_quantizer", "biases"};
  const size_t dot = name.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  const auto contains = [](std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
  };
  return std::find(std::begin(kLast), std::end(kLast), last) != std::end(kLast) ||
         contains(last, "_scale") || contains(last, "zero_point") || contains(last, "nested_") ||
         contains(last, "bitsandbytes__") || contains(name, "_quantizer.");
}

}  // namespace specfabric::model
