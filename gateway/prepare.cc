#include "gateway/prepare.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"
#include "gateway/json_fields.h"

namespace specfabric::gateway {
namespace {

using Ids = std::vector<base::TokenId>;

std::optional<ApiError> CheckIds(const Ids& ids, const char* field, int32_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocabulary) {
      return BadRequest(field, absl::StrCat("'", field, "' holds the token id ", ids[i], " at ", i,
                                            "; the vocabulary has ids 0 to ", vocabulary - 1));
    }
  }
  return std::nullopt;
}

Parsed<PreparedPrompt> PreparePrompt(const Prompt& given, bool add_special_tokens,
                                     const tokenizer::Tokenizer& tokenizer, int32_t vocabulary) {
  PreparedPrompt prompt;
  if (const auto* ids = std::get_if<Ids>(&given)) {
    if (auto error = CheckIds(*ids, "prompt", vocabulary)) return *std::move(error);
    prompt.ids = *ids;
  } else {
    prompt.text = std::get<std::string>(given);
    prompt.has_text = true;
    absl::StatusOr<Ids> encoded = tokenizer.Encode(prompt.text, add_special_tokens);
    if (!encoded.ok()) return FromStatus(encoded.status(), "prompt");
    prompt.ids = *std::move(encoded);
  }
  if (prompt.ids.empty()) {
    return BadRequest("prompt", "'prompt' holds no token; at least one is needed");
  }
  return prompt;
}

// Sets what of the request follows from the prompt.
Parsed<PreparedPrompt> PrepareChat(GenerationRequest& request, const ChatFormat& format,
                                   const tokenizer::Tokenizer& tokenizer) {
  TokenizeRequest chat;
  chat.messages = request.messages;
  chat.template_variables = request.template_variables;
  chat.tools_json = request.tools_json;
  chat.add_generation_prompt = request.add_generation_prompt;
  chat.continue_final_message = request.continue_final_message;
  const Parsed<std::string> text = RenderChat(chat, tokenizer);
  if (const auto* error = std::get_if<ApiError>(&text)) return *error;
  PrepareReasoning(format, std::get<std::string>(text), request);
  absl::StatusOr<Ids> ids =
      tokenizer.Encode(std::get<std::string>(text), request.add_special_tokens);
  if (!ids.ok()) return FromStatus(ids.status(), "messages");
  if (ids->empty()) {
    return BadRequest("messages", "'messages' give no token; at least one is needed");
  }
  PreparedPrompt prompt;
  prompt.ids = *std::move(ids);
  return prompt;
}

// Keeps only the end of the prompt if the request asks for that. The text of the request then no
// longer matches, so it is dropped.
void Truncate(const GenerationRequest& request, const ServedModel& model, PreparedPrompt& prompt) {
  int64_t keep = request.keep_prompt_tokens;
  if (keep == 0) return;
  if (keep == kFitPrompt) {
    // If max_tokens is not given, leaves room for at least one token.
    const int64_t output = std::min<int64_t>(request.max_tokens.value_or(1), model.context);
    keep = std::max<int64_t>(1, model.context - output);
  }
  const auto length = static_cast<int64_t>(prompt.ids.size());
  if (length <= keep) return;
  prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - keep);
  prompt.text.clear();
  prompt.has_text = false;
}

// The limit of output tokens after a prompt of `length`.
Parsed<int32_t> Room(const GenerationRequest& request, int64_t length, const ServedModel& model) {
  const char* field = request.chat() ? "messages" : "prompt";
  const int64_t asked = request.max_tokens.value_or(model.context);
  const int64_t left = model.context - length;
  if (left < 0 || (left == 0 && asked > 0)) {
    ApiError error =
        BadRequest(field, absl::StrCat("'", field, "' has ", length,
                                       " tokens; this model's maximum context length is ",
                                       model.context, " tokens, prompt and output together"));
    error.code = "context_length_exceeded";
    return error;
  }
  return static_cast<int32_t>(std::min(asked, left));
}

Ids Unique(Ids ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Ids StopIds(const GenerationRequest& request, const tokenizer::Tokenizer& tokenizer) {
  Ids ids = request.stop_token_ids;
  // A text that its grammar has ended cannot go on.
  if (!request.ignore_eos || !request.grammar.empty()) {
    ids.insert(ids.end(), tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  }
  return Unique(std::move(ids));
}

std::optional<ApiError> CheckBias(const std::vector<base::LogitBias>& bias, int32_t vocabulary) {
  // Ids ascend.
  if (bias.empty() || bias.back().token < vocabulary) return std::nullopt;
  return BadRequest("logit_bias",
                    absl::StrCat("'logit_bias' holds the token id ", bias.back().token,
                                 "; the vocabulary has ids 0 to ", vocabulary - 1));
}

// The tokens that are suppressed for the first min_tokens, as in vLLM: stop tokens and end tokens,
// with ignore_eos as well. An end token without a logit in the model need not be suppressed.
Ids SuppressedTokenIds(const GenerationRequest& request, const tokenizer::Tokenizer& tokenizer,
                       int32_t vocabulary) {
  if (request.rules.min_tokens == 0) return {};
  Ids ids = request.stop_token_ids;
  ids.insert(ids.end(), tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  std::erase_if(ids, [&](base::TokenId id) { return id >= vocabulary; });
  return Unique(std::move(ids));
}

using OptionalMethod = std::optional<schemas::VerificationMethod>;

// Checks the name only. Each target checks whether it serves the method; the client gets its
// refusal.
Parsed<OptionalMethod> ReadVerification(const GenerationRequest& request) {
  const std::string& name = request.verification;
  if (name.empty()) return OptionalMethod();
  const auto verification = schemas::ParseVerificationMethod(ShownText(name));
  if (verification.ok()) return OptionalMethod(*verification);
  return BadRequest(request.verification_field, base::Message(verification.status()));
}

static_assert(kMaxPriority == schemas::kMaxPriority);
static_assert(kMaxDraftTokens == schemas::kMaxDraftTokens);

schemas::Submit MakeSubmit(const GenerationRequest& request, const Ids& prompt, const Ids& stop_ids,
                           int32_t max_tokens, uint64_t seed, OptionalMethod verification) {
  schemas::Submit submit;
  submit.verification = verification;
  schemas::SequenceRequest& sequence = submit.sequence;
  sequence.prompt = prompt;
  sequence.sampling = request.sampling;
  sequence.sampling.seed = seed;
  sequence.rules = request.rules;
  sequence.grammar = request.grammar;
  sequence.max_tokens = max_tokens;
  sequence.stop_ids = stop_ids;
  sequence.logprobs = std::max(request.logprobs, request.prompt_logprobs);
  sequence.priority = request.priority;
  sequence.tpot_slo = request.tpot_slo;
  sequence.speculate = request.speculate;
  sequence.max_draft_tokens = request.max_draft_tokens;
  sequence.drafter = request.drafter;
  sequence.score_prompt = (request.echo && request.logprobs >= 0) || request.prompt_logprobs >= 0;
  return submit;
}

}  // namespace

std::optional<ApiError> CheckModel(const std::string& asked, const ServedModel& model) {
  if (asked.empty() || asked == model.name) return std::nullopt;
  if (model.aliases != nullptr &&
      std::find(model.aliases->begin(), model.aliases->end(), asked) != model.aliases->end()) {
    return std::nullopt;
  }
  return ApiError{.status = 404,
                  .message = absl::StrCat("there is no model '", ShownText(asked),
                                          "'; this server has '", model.name, "'"),
                  .param = "model",
                  .code = "model_not_found"};
}

Parsed<Prepared> Prepare(GenerationRequest request, const tokenizer::Tokenizer& tokenizer,
                         const ChatFormat& format, const ServedModel& model,
                         const std::function<uint64_t()>& draw_seed) {
  if (auto error = CheckModel(request.model, model)) return *std::move(error);
  if (auto error = CheckIds(request.stop_token_ids, "stop_token_ids", model.vocabulary)) {
    return *std::move(error);
  }
  if (auto error = CheckBias(request.rules.bias, model.vocabulary)) return *std::move(error);
  PrepareTools(format, request);
  request.rules.suppressed_token_ids = SuppressedTokenIds(request, tokenizer, model.vocabulary);
  const Parsed<OptionalMethod> verification = ReadVerification(request);
  if (const auto* error = std::get_if<ApiError>(&verification)) return *error;
  Prepared prepared;
  const Ids stop_ids = StopIds(request, tokenizer);
  const size_t prompts = request.chat() ? 1 : request.prompts.size();
  for (size_t i = 0; i < prompts; ++i) {
    Parsed<PreparedPrompt> prompt =
        request.chat() ? PrepareChat(request, format, tokenizer)
                       : PreparePrompt(request.prompts[i], request.add_special_tokens, tokenizer,
                                       model.vocabulary);
    if (auto* error = std::get_if<ApiError>(&prompt)) return std::move(*error);
    prepared.prompts.push_back(std::get<PreparedPrompt>(std::move(prompt)));
    Truncate(request, model, prepared.prompts.back());
    const Ids& ids = prepared.prompts.back().ids;
    const Parsed<int32_t> room = Room(request, static_cast<int64_t>(ids.size()), model);
    if (const auto* error = std::get_if<ApiError>(&room)) return *error;
    prepared.prompt_tokens += static_cast<int64_t>(ids.size());
    const uint64_t seed = request.has_seed ? request.sampling.seed : draw_seed();
    for (int choice = 0; choice < request.n; ++choice) {
      prepared.submits.push_back(MakeSubmit(request, ids, stop_ids, std::get<int32_t>(room),
                                            base::ChoiceSeed(seed, choice),
                                            std::get<OptionalMethod>(verification)));
    }
  }
  prepared.request = std::move(request);
  return prepared;
}

Parsed<Ids> Tokenize(const TokenizeRequest& request, const tokenizer::Tokenizer& tokenizer) {
  Parsed<std::string> text = request.prompt;
  const bool chat = !request.messages.empty();
  if (chat) text = RenderChat(request, tokenizer);
  if (auto* error = std::get_if<ApiError>(&text)) return std::move(*error);
  absl::StatusOr<Ids> ids =
      tokenizer.Encode(std::get<std::string>(text), request.add_special_tokens);
  if (!ids.ok()) return FromStatus(ids.status(), chat ? "messages" : "prompt");
  return *std::move(ids);
}

}  // namespace specfabric::gateway
