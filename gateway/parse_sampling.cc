#include "gateway/parse_sampling.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace specfabric::gateway {
namespace {

bool IsTokenId(const Json& value) {
  return value.is_number_integer() &&
         (value.is_number_unsigned()
              ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<base::TokenId>::max()}
              : value.get<int64_t>() >= 0);
}

// A double in range may round to a float out of range, which targets would refuse.
constexpr float kLeastFloat = std::numeric_limits<float>::min();
constexpr float kBelowOne = 1.0f - std::numeric_limits<float>::epsilon() / 2;

double Number(Fields& fields, const char* name, double fallback, const NumberRange& range) {
  return fields.Number(name, fallback, range.allowed, range.ok);
}

// A token id as the key of an object: decimal, without sign or leading zeros.
std::optional<base::TokenId> TokenKey(const std::string& key) {
  base::TokenId id = base::kNoToken;
  const char* const end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, id);
  const bool whole = error == std::errc() && stop == end && std::to_string(id) == key;
  return whole && id >= 0 ? std::optional(id) : std::nullopt;
}

// False if `value` is not a map of biases. Entries of 0 have no effect and are left out.
bool ReadBias(const Json& value, std::vector<base::LogitBias>* bias) {
  if (!value.is_object() || value.size() > kMaxLogitBias) return false;
  for (const auto& [key, entry] : value.items()) {
    const std::optional<base::TokenId> id = TokenKey(key);
    if (!id || !entry.is_number()) return false;
    const double number = entry.get<double>();
    if (!(number >= -100 && number <= 100)) return false;
    if (number != 0) bias->push_back({*id, static_cast<float>(number)});
  }
  std::sort(bias->begin(), bias->end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  return true;
}

// The strings of `stop`, one or a list; false if it is neither, or more than is allowed.
bool ReadStopStrings(const Json& stop, std::vector<std::string>* strings) {
  if (stop.is_string()) {
    strings->push_back(stop.get<std::string>());
  } else if (!stop.is_array() || stop.size() > kMaxStops) {
    return false;
  } else {
    for (const Json& entry : stop) {
      if (!entry.is_string()) return false;
      strings->push_back(entry.get<std::string>());
    }
  }
  size_t bytes = 0;
  for (const std::string& entry : *strings) {
    if (entry.empty()) return false;
    bytes += entry.size();
  }
  return bytes <= kMaxStopBytes;
}

}  // namespace

bool ReadTokenIds(const Json& value, std::vector<base::TokenId>* ids) {
  if (!value.is_array()) return false;
  ids->reserve(value.size());
  for (const Json& id : value) {
    if (!IsTokenId(id)) return false;
    ids->push_back(id.get<base::TokenId>());
  }
  return true;
}

void ReadSampling(Fields& fields, const SamplingDefaults& defaults, GenerationRequest& request) {
  base::SamplingParams& sampling = request.sampling;
  sampling.temperature = static_cast<float>(
      Number(fields, "temperature", defaults.temperature.value_or(1.0), kTemperatures));
  const double top_p = Number(fields, "top_p", defaults.top_p.value_or(1.0), kTopPs);
  // top_k of 1 is the same as temperature 0, and is turned into it, so that both take the same path
  // and give the same text.
  if (top_p == 0) sampling.temperature = 0;
  sampling.top_p = top_p == 0 ? 1.0f : std::max(static_cast<float>(top_p), kLeastFloat);
  sampling.min_p = std::min(
      static_cast<float>(Number(fields, "min_p", defaults.min_p.value_or(0.0), kMinPs)), kBelowOne);
  // -1 (vLLM) and 0 (others) both keep all tokens.
  const int64_t top_k = fields.Integer("top_k", defaults.top_k.value_or(0), -1, kMaxTopK);
  sampling.top_k = top_k < 0 ? 0 : static_cast<int32_t>(top_k);
  request.has_seed = fields.Find("seed") != nullptr;
  sampling.seed = fields.Seed("seed", 0);
}

void ReadRules(Fields& fields, const SamplingDefaults& defaults, GenerationRequest& request) {
  base::LogitRules& rules = request.rules;
  const auto penalty = [&](const char* name) {
    return static_cast<float>(
        fields.Number(name, 0.0, "from -2 to 2", [](double p) { return p >= -2 && p <= 2; }));
  };
  rules.presence_penalty = penalty("presence_penalty");
  rules.frequency_penalty = penalty("frequency_penalty");
  const double repetition = Number(fields, "repetition_penalty",
                                   defaults.repetition_penalty.value_or(1.0), kRepetitionPenalties);
  rules.repetition_penalty = static_cast<float>(
      std::clamp<double>(repetition, kLeastFloat, std::numeric_limits<float>::max()));
  const int64_t min_tokens = fields.Integer("min_tokens", 0, 0, Fields::kAny);
  if (request.max_tokens && min_tokens > *request.max_tokens) {
    fields.Fail("min_tokens",
                "must be at most 'max_tokens', " + std::to_string(*request.max_tokens));
  }
  rules.min_tokens =
      static_cast<int32_t>(std::min<int64_t>(min_tokens, std::numeric_limits<int32_t>::max()));
  const Json* bias = fields.Find("logit_bias");
  if (bias != nullptr && !ReadBias(*bias, &rules.bias)) {
    fields.Fail("logit_bias", "must be an object of at most " + std::to_string(kMaxLogitBias) +
                                  " token ids, each with a number from -100 to 100");
  }
}

void ReadStops(Fields& fields, GenerationRequest& request) {
  const Json* stop = fields.Find("stop");
  if (stop != nullptr && !ReadStopStrings(*stop, &request.stop)) {
    fields.Fail("stop", "must be a string or a list of at most " + std::to_string(kMaxStops) +
                            " strings, none of them empty, of " + std::to_string(kMaxStopBytes) +
                            " bytes together");
  }
  const Json* ids = fields.Find("stop_token_ids");
  if (ids != nullptr &&
      (ids->size() > kMaxStopTokenIds || !ReadTokenIds(*ids, &request.stop_token_ids))) {
    fields.Fail("stop_token_ids",
                "must be a list of at most " + std::to_string(kMaxStopTokenIds) + " token ids");
  }
  request.include_stop = fields.Bool("include_stop_str_in_output", false);
}

}  // namespace specfabric::gateway
