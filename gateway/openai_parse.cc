#include "gateway/openai_parse.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gateway/foreign_options.h"
#include "gateway/json_fields.h"
#include "gateway/parse_grammar.h"
#include "gateway/parse_messages.h"
#include "gateway/parse_sampling.h"
#include "gateway/parse_speculation.h"
#include "gateway/parse_tools.h"

namespace specfabric::gateway {
namespace {

constexpr int kMaxChoices = 128;

void ReadStreaming(Fields& fields, GenerationRequest& request) {
  request.stream = fields.Bool("stream", false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail("stream_options", "must be an object");
  if (!request.stream) return fields.Fail("stream_options", "needs 'stream': true");
  Fields inner(*options);
  request.include_usage = inner.Bool("include_usage", false);
  request.usage_in_each = inner.Bool("continuous_usage_stats", false);
  if (!inner.ok()) {
    fields.Fail("stream_options",
                "must have true or false as 'include_usage' and 'continuous_usage_stats'");
  }
  for (const auto& [name, value] : options->items()) {
    if (name != "include_usage" && name != "continuous_usage_stats" &&
        name != "include_obfuscation") {
      request.ignored_fields.push_back("stream_options." + name);
    }
  }
}

void ReadService(Fields& fields, GenerationRequest& request) {
  // For clients lower is first, as in vLLM.
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
  // A value above 0 must not be rounded to 0, which means no target.
  if (slo_ms > 0) request.tpot_slo = std::max<base::Nanos>(1, std::llround(slo_ms * 1e6));
}

void ReadTruncation(Fields& fields, GenerationRequest& request) {
  constexpr const char* kName = "truncate_prompt_tokens";
  if (fields.Find(kName) == nullptr) return;
  request.keep_prompt_tokens = fields.Integer(kName, 0, kFitPrompt, Fields::kAny);
  if (request.keep_prompt_tokens == 0) fields.Fail(kName, "must be -1 or at least 1");
}

void ReadCommon(Fields& fields, const SamplingDefaults& defaults, GenerationRequest& request) {
  request.model = fields.String("model", "");
  ReadSpeculation(fields, request);
  request.n = static_cast<int>(fields.Integer("n", 1, 1, kMaxChoices));
  request.ignore_eos = fields.Bool("ignore_eos", false);
  request.return_token_ids = fields.Bool("return_token_ids", false);
  request.prompt_logprobs =
      static_cast<int>(fields.Integer("prompt_logprobs", -1, 0, kMaxTopLogprobs));
  request.tokens_as_ids = fields.Bool("return_tokens_as_token_ids", false);
  request.skip_special_tokens = fields.Bool("skip_special_tokens", true);
  const int64_t best_of = fields.Integer("best_of", request.n, 1, kMaxChoices);
  if (best_of != request.n) {
    fields.Fail("best_of", "is not supported; it may only be left out or equal 'n'");
  }
  ReadTruncation(fields, request);
  ReadSampling(fields, defaults, request);
  ReadRules(fields, defaults, request);
  ReadStops(fields, request);
  ReadGrammar(fields, request);
  ReadStreaming(fields, request);
  if (request.stream && request.prompt_logprobs >= 0) {
    fields.Fail("prompt_logprobs", "may not be given with 'stream': true");
  }
  ReadService(fields, request);
}

void ReadMaxTokens(Fields& fields, GenerationRequest& request) {
  // max_completion_tokens is the newer name and takes precedence.
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (fields.Find(name) != nullptr) request.max_tokens = fields.Integer(name, 0, 0, Fields::kAny);
  }
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

void ReadChatLogprobs(Fields& fields, GenerationRequest& request) {
  const bool wanted = fields.Bool("logprobs", false);
  const int top = static_cast<int>(fields.Integer("top_logprobs", 0, 0, kMaxTopLogprobs));
  if (top > 0 && !wanted) fields.Fail("top_logprobs", "needs 'logprobs': true");
  if (wanted) request.logprobs = top;
}

// Of a chat, or of its tokens: what follows the last message.
template <typename T>
void ReadContinuation(Fields& fields, T& request) {
  constexpr const char* kName = "continue_final_message";
  request.continue_final_message = fields.Bool(kName, false);
  request.add_generation_prompt =
      fields.Bool("add_generation_prompt", !request.continue_final_message);
  if (request.continue_final_message && request.add_generation_prompt) {
    fields.Fail(kName, "may only be true where 'add_generation_prompt' is not");
  }
}

// SGLang's separate_reasoning, llama.cpp's reasoning_format, and vLLM's include_reasoning.
void ReadReasoning(Fields& fields, GenerationRequest& request) {
  request.split_reasoning = fields.Bool("separate_reasoning", true);
  request.include_reasoning = fields.Bool("include_reasoning", true);
  constexpr const char* kFormat = "reasoning_format";
  const Json* format = fields.Find(kFormat);
  if (format == nullptr || *format == "auto" || *format == "deepseek") return;
  if (*format != "none") return fields.Fail(kFormat, "must be 'none', 'auto' or 'deepseek'");
  request.split_reasoning = false;
}

template <typename T>
Parsed<T> Result(const Fields& fields, T request) {
  if (!fields.ok()) return *fields.error();
  return request;
}

}  // namespace

Parsed<GenerationRequest> ParseCompletion(std::string_view body, const SamplingDefaults& defaults) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  Fields fields(std::get<Json>(json));
  GenerationRequest request;
  ReadPrompts(fields, request);
  request.max_tokens = 16;  // OpenAI's default for completions
  ReadMaxTokens(fields, request);
  ReadCommon(fields, defaults, request);
  request.echo = fields.Bool("echo", false);
  request.add_special_tokens = fields.Bool("add_special_tokens", true);
  request.logprobs = static_cast<int>(fields.Integer("logprobs", -1, 0, kMaxTopLogprobs));
  CheckChoices(fields, request);
  CheckToolCount(fields);
  CheckOptions(std::get<Json>(json), kCompletions, fields, &request.ignored_fields);
  return Result(fields, std::move(request));
}

Parsed<GenerationRequest> ParseChat(std::string_view body, const SamplingDefaults& defaults) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  return ParseChatFields(std::get<Json>(std::move(json)), defaults);
}

Parsed<GenerationRequest> ParseChatFields(Json body, const SamplingDefaults& defaults) {
  Fields fields(body);
  GenerationRequest request;
  request.api = Api::kChat;
  request.messages = ReadMessages(body, fields);
  request.template_variables = ReadTemplateVariables(fields);
  request.max_tokens = defaults.max_tokens;
  ReadMaxTokens(fields, request);
  ReadCommon(fields, defaults, request);
  ReadContinuation(fields, request);
  ReadReasoning(fields, request);
  // A rendered chat template already has the special tokens.
  request.add_special_tokens = fields.Bool("add_special_tokens", false);
  ReadChatLogprobs(fields, request);
  CheckToolCount(fields);
  ReadTools(fields, request);
  CheckOptions(body, kChat, fields, &request.ignored_fields);
  return Result(fields, std::move(request));
}

Parsed<TokenizeRequest> ParseTokenize(std::string_view body) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  Fields fields(std::get<Json>(json));
  TokenizeRequest request;
  request.model = fields.String("model", "");
  if (fields.Find("messages") != nullptr) {
    request.messages = ReadMessages(std::get<Json>(json), fields);
    request.template_variables = ReadTemplateVariables(fields);
    request.add_special_tokens = fields.Bool("add_special_tokens", false);
    ReadContinuation(fields, request);
  } else {
    const Json* prompt = fields.Find("prompt");
    if (prompt == nullptr || !prompt->is_string()) fields.Fail("prompt", "must be a string");
    request.prompt = fields.String("prompt", "");
    request.add_special_tokens = fields.Bool("add_special_tokens", true);
  }
  CheckOptions(std::get<Json>(json), kTokenize, fields, &request.ignored_fields);
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
  CheckOptions(std::get<Json>(json), kDetokenize, fields, &request.ignored_fields);
  return Result(fields, std::move(request));
}

}  // namespace specfabric::gateway
