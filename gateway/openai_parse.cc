#include "gateway/openai_parse.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "gateway/json_fields.h"

namespace specfabric::gateway {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int kMaxChoices = 128;

bool IsTokenId(const Json& value) {
  return value.is_number_integer() &&
         (value.is_number_unsigned()
              ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<base::TokenId>::max()}
              : value.get<int64_t>() >= 0);
}

// A list of token ids; false if `value` is something else.
bool ReadTokenIds(const Json& value, std::vector<base::TokenId>* ids) {
  if (!value.is_array()) return false;
  ids->reserve(value.size());
  for (const Json& id : value) {
    if (!IsTokenId(id)) return false;
    ids->push_back(id.get<base::TokenId>());
  }
  return true;
}

// Options of OpenAI's or vLLM's that change the answer and that this server does not have.
struct Unsupported {
  const char* name;
  bool (*neutral)(const Json&);
  const char* allowed;
};

bool IsEmpty(const Json& value) {
  return (value.is_structured() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}
bool IsFalse(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool IsNone(const Json& value) { return value == "none" || value == "auto"; }
bool IsText(const Json& value) {
  return value.is_object() && value.size() == 1 && value.contains("type") &&
         value["type"] == "text";
}
bool Never(const Json&) { return false; }

constexpr std::array kUnsupported = {
    Unsupported{"suffix", IsEmpty, "an empty string"},
    Unsupported{"tools", IsEmpty, "an empty list"},
    Unsupported{"tool_choice", IsNone, "\"none\" or \"auto\""},
    Unsupported{"functions", IsEmpty, "an empty list"},
    Unsupported{"response_format", IsText, "{\"type\": \"text\"}"},
    Unsupported{"use_beam_search", IsFalse, "false"},
    Unsupported{"continue_final_message", IsFalse, "false"},
    Unsupported{"prompt_logprobs", Never, "nothing"},
    Unsupported{"bad_words", IsEmpty, "an empty list"},
    Unsupported{"structured_outputs", Never, "nothing"},
    Unsupported{"guided_json", Never, "nothing"},
    Unsupported{"guided_regex", Never, "nothing"},
    Unsupported{"guided_choice", Never, "nothing"},
    Unsupported{"guided_grammar", Never, "nothing"},
    Unsupported{"chat_template", Never, "nothing"},
    Unsupported{"chat_template_kwargs", IsEmpty, "an empty object"},
};

void RefuseUnsupported(Fields& fields) {
  for (const Unsupported& option : kUnsupported) {
    const Json* value = fields.Find(option.name);
    if (value != nullptr && !option.neutral(*value)) {
      fields.Fail(option.name,
                  std::string("is not supported; it may only be left out or ") + option.allowed);
    }
  }
}

// Doubles that are in range may round to floats that are not, which the targets would refuse.
constexpr float kLeastFloat = std::numeric_limits<float>::min();
constexpr float kBelowOne = 1.0f - std::numeric_limits<float>::epsilon() / 2;

void ReadSampling(Fields& fields, GenerationRequest& request) {
  base::SamplingParams& sampling = request.sampling;
  sampling.temperature = static_cast<float>(
      fields.Number("temperature", 1.0, "from 0 to 2", [](double t) { return t >= 0 && t <= 2; }));
  const double top_p =
      fields.Number("top_p", 1.0, "above 0, at most 1", [](double p) { return p > 0 && p <= 1; });
  sampling.top_p = std::max(static_cast<float>(top_p), kLeastFloat);
  const double min_p =
      fields.Number("min_p", 0.0, "from 0 to below 1", [](double p) { return p >= 0 && p < 1; });
  sampling.min_p = std::min(static_cast<float>(min_p), kBelowOne);
  // -1 keeps all tokens for vLLM's clients, 0 for everybody else's.
  const int64_t top_k = fields.Integer("top_k", 0, -1, std::numeric_limits<int32_t>::max());
  sampling.top_k = top_k < 0 ? 0 : static_cast<int32_t>(top_k);
  if (const Json* seed = fields.Find("seed")) {
    request.has_seed = true;
    sampling.seed = seed->is_number_unsigned()
                        ? seed->get<uint64_t>()
                        : static_cast<uint64_t>(
                              fields.Integer("seed", 0, std::numeric_limits<int64_t>::min(), kAny));
  }
}

// A token id as the key of an object: decimal, without sign or leading zeros.
std::optional<base::TokenId> TokenKey(const std::string& key) {
  base::TokenId id = base::kNoToken;
  const char* const end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, id);
  const bool whole = error == std::errc() && stop == end && std::to_string(id) == key;
  return whole && id >= 0 ? std::optional(id) : std::nullopt;
}

// False if `value` is no map of biases. Entries of 0 change nothing and are left out.
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

// After max_tokens, which bounds min_tokens.
void ReadRules(Fields& fields, GenerationRequest& request) {
  base::LogitRules& rules = request.rules;
  const auto penalty = [&](const char* name) {
    return static_cast<float>(
        fields.Number(name, 0.0, "from -2 to 2", [](double p) { return p >= -2 && p <= 2; }));
  };
  rules.presence_penalty = penalty("presence_penalty");
  rules.frequency_penalty = penalty("frequency_penalty");
  const double repetition =
      fields.Number("repetition_penalty", 1.0, "above 0", [](double p) { return p > 0; });
  rules.repetition_penalty = static_cast<float>(
      std::clamp<double>(repetition, kLeastFloat, std::numeric_limits<float>::max()));
  const int64_t min_tokens = fields.Integer("min_tokens", 0, 0, kAny);
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
  if (const Json* stop = fields.Find("stop")) {
    const bool is_list = stop->is_array() && stop->size() <= kMaxStops;
    bool good = stop->is_string() || is_list;
    if (stop->is_string()) request.stop.push_back(stop->get<std::string>());
    for (const Json& entry : is_list ? *stop : Json::array()) {
      good = good && entry.is_string();
      if (good) request.stop.push_back(entry.get<std::string>());
    }
    for (const std::string& entry : request.stop) good = good && !entry.empty();
    if (!good) {
      fields.Fail("stop", "must be a string or a list of at most " + std::to_string(kMaxStops) +
                              " strings, none of them empty");
    }
  }
  if (const Json* ids = fields.Find("stop_token_ids")) {
    if (ids->size() > kMaxStopTokenIds || !ReadTokenIds(*ids, &request.stop_token_ids)) {
      fields.Fail("stop_token_ids",
                  "must be a list of at most " + std::to_string(kMaxStopTokenIds) + " token ids");
    }
  }
}

void ReadStreaming(Fields& fields, GenerationRequest& request) {
  request.stream = fields.Bool("stream", false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail("stream_options", "must be an object");
  if (!request.stream) return fields.Fail("stream_options", "needs 'stream': true");
  Fields inner(*options);
  request.include_usage = inner.Bool("include_usage", false);
  if (!inner.ok()) fields.Fail("stream_options", "must have true or false as 'include_usage'");
}

void ReadService(Fields& fields, GenerationRequest& request) {
  // Lower first for clients, who know it from vLLM.
  request.priority = -static_cast<int>(fields.Integer("priority", 0, -kMaxPriority, kMaxPriority));
  request.cache_salt = fields.String("cache_salt", "");
  if (fields.Find("cache_salt") != nullptr && request.cache_salt.empty()) {
    fields.Fail("cache_salt", "must be a string that is not empty");
  }
  const double timeout = fields.Number("timeout", 0.0, "above 0, at most 86400",
                                       [](double s) { return s > 0 && s <= 86400; });
  if (timeout > 0) request.timeout = std::max<base::Nanos>(1, std::llround(timeout * 1e9));
  const double slo_ms = fields.Number("slo_tpot_ms", 0.0, "above 0, at most 3600000",
                                      [](double ms) { return ms > 0 && ms <= 3.6e6; });
  // Above 0 as given, whatever it rounds to.
  if (slo_ms > 0) request.tpot_slo = std::max<base::Nanos>(1, std::llround(slo_ms * 1e6));
}

void ReadCommon(Fields& fields, GenerationRequest& request) {
  request.model = fields.String("model", "");
  request.coupling = fields.String("coupling", "");
  fields.String("user", "");
  request.n = static_cast<int>(fields.Integer("n", 1, 1, kMaxChoices));
  request.ignore_eos = fields.Bool("ignore_eos", false);
  request.return_token_ids = fields.Bool("return_token_ids", false);
  const int64_t best_of = fields.Integer("best_of", request.n, 1, kMaxChoices);
  if (best_of != request.n) {
    fields.Fail("best_of", "is not supported; it may only be left out or equal 'n'");
  }
  ReadSampling(fields, request);
  ReadRules(fields, request);
  ReadStops(fields, request);
  ReadStreaming(fields, request);
  ReadService(fields, request);
  RefuseUnsupported(fields);
}

void ReadMaxTokens(Fields& fields, const char* name, GenerationRequest& request) {
  if (fields.Find(name) != nullptr) request.max_tokens = fields.Integer(name, 0, 0, kAny);
}

void ReadPrompts(Fields& fields, GenerationRequest& request) {
  constexpr const char* kRule =
      "must be a string, a list of token ids, or a list of one or the other";
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail("prompt", kRule);
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array() || prompt->empty()) return fields.Fail("prompt", kRule);
  if (prompt->front().is_number()) {
    std::vector<base::TokenId> ids;
    if (!ReadTokenIds(*prompt, &ids)) return fields.Fail("prompt", kRule);
    request.prompts.emplace_back(std::move(ids));
    return;
  }
  const bool strings = prompt->front().is_string();
  for (const Json& entry : *prompt) {
    std::vector<base::TokenId> ids;
    if (strings && entry.is_string()) {
      request.prompts.emplace_back(entry.get<std::string>());
    } else if (!strings && ReadTokenIds(entry, &ids)) {
      request.prompts.emplace_back(std::move(ids));
    } else {
      return fields.Fail("prompt", kRule);
    }
  }
}

void CheckChoices(Fields& fields, const GenerationRequest& request) {
  const size_t choices = request.prompts.size() * static_cast<size_t>(request.n);
  if (choices > kMaxChoices) {
    fields.Fail(BadRequest("n", std::to_string(request.prompts.size()) + " prompts with 'n' " +
                                    std::to_string(request.n) + " are " + std::to_string(choices) +
                                    " choices; at most " + std::to_string(kMaxChoices) +
                                    " are allowed"));
  }
}

// A message's content as one string; chat templates expect that. False if it is none.
bool FlattenContent(Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return message.contains("tool_calls");
  if (content->is_string()) return true;
  if (!content->is_array()) return false;
  std::string text;
  for (const Json& part : *content) {
    if (!part.is_object() || part.value("type", Json()) != "text") return false;
    const auto piece = part.find("text");
    if (piece == part.end() || !piece->is_string()) return false;
    text += piece->get_ref<const std::string&>();
  }
  *content = std::move(text);
  return true;
}

std::string ReadMessages(Fields& fields) {
  const Json* given = fields.Find("messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    fields.Fail("messages", "must be a list of at least one message");
    return "";
  }
  Json messages = *given;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string name = "'messages[" + std::to_string(i) + "]' ";
    Json& message = messages[i];
    const bool has_role =
        message.is_object() && message.contains("role") && message["role"].is_string();
    if (!has_role) {
      fields.Fail(BadRequest("messages", name + "must be an object with a string as 'role', got " +
                                             Shown((*given)[i])));
      return "";
    }
    if (!FlattenContent(message)) {
      fields.Fail(BadRequest("messages", name +
                                             "must have a string or a list of text parts as "
                                             "'content', got " +
                                             Shown((*given)[i])));
      return "";
    }
  }
  return messages.dump();
}

void ReadChatLogprobs(Fields& fields, GenerationRequest& request) {
  const bool wanted = fields.Bool("logprobs", false);
  const int top = static_cast<int>(fields.Integer("top_logprobs", 0, 0, kMaxTopLogprobs));
  if (top > 0 && !wanted) fields.Fail("top_logprobs", "needs 'logprobs': true");
  if (wanted) request.logprobs = top;
}

template <typename T>
Parsed<T> Result(const Fields& fields, T request) {
  if (!fields.ok()) return *fields.error();
  return request;
}

}  // namespace

Parsed<GenerationRequest> ParseCompletion(std::string_view body) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  Fields fields(std::get<Json>(json));
  GenerationRequest request;
  ReadPrompts(fields, request);
  request.max_tokens = 16;  // OpenAI's default here
  ReadMaxTokens(fields, "max_tokens", request);
  ReadCommon(fields, request);
  request.echo = fields.Bool("echo", false);
  request.add_special_tokens = fields.Bool("add_special_tokens", true);
  request.logprobs = static_cast<int>(fields.Integer("logprobs", -1, 0, kMaxTopLogprobs));
  CheckChoices(fields, request);
  return Result(fields, std::move(request));
}

Parsed<GenerationRequest> ParseChat(std::string_view body) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  Fields fields(std::get<Json>(json));
  GenerationRequest request;
  request.chat = true;
  request.messages = ReadMessages(fields);
  ReadMaxTokens(fields, "max_tokens", request);
  ReadMaxTokens(fields, "max_completion_tokens", request);  // the newer name wins
  ReadCommon(fields, request);
  request.add_generation_prompt = fields.Bool("add_generation_prompt", true);
  request.add_special_tokens = false;  // a rendered template holds its own
  if (fields.Bool("echo", false)) fields.Fail("echo", "is not supported in a chat");
  ReadChatLogprobs(fields, request);
  return Result(fields, std::move(request));
}

Parsed<TokenizeRequest> ParseTokenize(std::string_view body) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  Fields fields(std::get<Json>(json));
  TokenizeRequest request;
  request.model = fields.String("model", "");
  if (fields.Find("messages") != nullptr) {
    request.messages = ReadMessages(fields);
    request.add_special_tokens = fields.Bool("add_special_tokens", false);
    request.add_generation_prompt = fields.Bool("add_generation_prompt", true);
  } else {
    const Json* prompt = fields.Find("prompt");
    if (prompt == nullptr || !prompt->is_string()) fields.Fail("prompt", "must be a string");
    request.prompt = fields.String("prompt", "");
    request.add_special_tokens = fields.Bool("add_special_tokens", true);
  }
  return Result(fields, std::move(request));
}

Parsed<DetokenizeRequest> ParseDetokenize(std::string_view body) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  Fields fields(std::get<Json>(json));
  DetokenizeRequest request;
  request.model = fields.String("model", "");
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr || !ReadTokenIds(*tokens, &request.tokens)) {
    fields.Fail("tokens", "must be a list of token ids");
  }
  return Result(fields, std::move(request));
}

}  // namespace specfabric::gateway
