#include "gateway/sampling_defaults.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gateway/json_fields.h"
#include "gateway/parse_sampling.h"

namespace specfabric::gateway {
namespace {

std::optional<double> Number(Fields& fields, const char* name, const NumberRange& range) {
  if (fields.Find(name) == nullptr) return std::nullopt;
  return fields.Number(name, 0.0, range.allowed, range.ok);
}

}  // namespace

absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/generation_config.json");
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return SamplingDefaults{};
    return absl::InvalidArgumentError(absl::StrCat("cannot open ", path));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Parsed<Json> json = ParseJson(text);
  const Json* object = std::get_if<Json>(&json);
  if (object == nullptr || !object->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  }
  Fields fields(*object);
  SamplingDefaults defaults;
  defaults.temperature = Number(fields, "temperature", kTemperatures);
  defaults.top_p = Number(fields, "top_p", kTopPs);
  defaults.min_p = Number(fields, "min_p", kMinPs);
  defaults.repetition_penalty = Number(fields, "repetition_penalty", kRepetitionPenalties);
  if (fields.Find("top_k") != nullptr) {
    defaults.top_k = static_cast<int32_t>(fields.Integer("top_k", 0, -1, kMaxTopK));
  }
  if (fields.Find("max_new_tokens") != nullptr) {
    defaults.max_tokens = fields.Integer("max_new_tokens", 0, 1, Fields::kAny);
  }
  if (!fields.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", fields.error()->message));
  }
  return defaults;
}

std::string Describe(const SamplingDefaults& defaults) {
  std::string text;
  const auto add = [&](const char* name, auto value, auto usual) {
    if (!value || *value == usual) return;
    absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", *value);
  };
  add("temperature", defaults.temperature, 1.0);
  add("top_p", defaults.top_p, 1.0);
  if (defaults.top_k.value_or(0) > 0) add("top_k", defaults.top_k, 0);
  add("min_p", defaults.min_p, 0.0);
  add("repetition_penalty", defaults.repetition_penalty, 1.0);
  add("max_new_tokens", defaults.max_tokens, int64_t{0});
  return text;
}

}  // namespace specfabric::gateway
