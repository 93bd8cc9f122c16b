#include "gateway/openai_format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "gateway/append.h"
#include "gateway/format_speculation.h"
#include "gateway/json_fields.h"

namespace specfabric::gateway {
namespace {

std::string IdName(base::TokenId id) { return absl::StrCat("token_id:", id); }

std::string Name(const TokenEntry::Candidate& token, bool as_id) {
  return as_id ? IdName(token.id) : TokenName(token.id, token.bytes);
}

// JSON has no infinities; -9999 is what vLLM reports for the logarithm of zero.
double Finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

// The format of /v1/completions: an object from token name to log-probability that includes the
// token itself. If two ids have the same name, the second is named by its id.
Json TopByName(const TokenEntry& entry, bool as_ids) {
  Json top = Json::object();
  const auto add = [&](const TokenEntry::Candidate& token) {
    std::string name = Name(token, as_ids);
    if (top.contains(name)) name = IdName(token.id);
    top[name] = Finite(token.logprob);
  };
  bool listed = false;
  for (const auto& candidate : entry.top) {
    listed = listed || candidate.id == entry.token.id;
    add(candidate);
  }
  if (!listed) add(entry.token);
  return top;
}

Json CompletionLogprobs(absl::Span<const TokenEntry> entries, bool as_ids) {
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(),
       offsets = Json::array();
  for (const TokenEntry& entry : entries) {
    tokens.push_back(Name(entry.token, as_ids));
    offsets.push_back(entry.offset);
    logprobs.push_back(entry.scored ? Json(Finite(entry.token.logprob)) : Json());
    top.push_back(entry.scored ? TopByName(entry, as_ids) : Json());
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(top)}};
}

Json CandidateJson(const TokenEntry::Candidate& token, bool as_id) {
  Json bytes = Json::array();
  for (const char byte : token.bytes) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", Name(token, as_id)},
          {"logprob", Finite(token.logprob)},
          {"bytes", std::move(bytes)}};
}

Json ChatLogprobs(absl::Span<const TokenEntry> entries, bool as_ids) {
  Json content = Json::array();
  for (const TokenEntry& entry : entries) content.push_back(ChatToken(entry, as_ids));
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// As vLLM has them: for each token an object from ids to log-probabilities, the token's own among
// them; null for the first one, which nothing precedes. A rank is known of candidates alone.
Json PromptLogprobs(absl::Span<const TokenEntry> entries) {
  Json list = Json::array();
  for (const TokenEntry& entry : entries) {
    Json token;
    const auto add = [&](const TokenEntry::Candidate& candidate, const Json& rank) {
      Json& json = token[std::to_string(candidate.id)];
      if (!json.is_null()) return;
      json = {{"logprob", Finite(candidate.logprob)},
              {"rank", rank},
              {"decoded_token", TokenName(candidate.id, candidate.bytes)}};
    };
    for (size_t i = 0; entry.scored && i < entry.top.size(); ++i) add(entry.top[i], i + 1);
    if (entry.scored) add(entry.token, nullptr);
    list.push_back(std::move(token));
  }
  return list;
}

Json Logprobs(bool chat, const ChoicePart& part) {
  if (!part.with_logprobs) return nullptr;
  return chat ? ChatLogprobs(part.piece.entries, part.tokens_as_ids)
              : CompletionLogprobs(part.piece.entries, part.tokens_as_ids);
}

// The members after the text.
void AddRest(bool chat, const ChoicePart& part, Json& choice) {
  choice["logprobs"] = Logprobs(chat, part);
  choice["finish_reason"] = part.finish_reason.empty() ? Json() : Json(part.finish_reason);
  // As in vLLM.
  if (!part.finish_reason.empty()) {
    choice["stop_reason"] = part.stop.empty() ? Json() : Json(part.stop);
  }
  if (part.with_token_ids) choice["token_ids"] = part.piece.ids;
  if (part.prompt_token_ids) choice["prompt_token_ids"] = *part.prompt_token_ids;
  if (part.prompt_logprobs) choice["prompt_logprobs"] = PromptLogprobs(*part.prompt_logprobs);
}

// Of a choice, or in a stream what is new of them. The id is told with the name.
Json ToolCalls(const AnswerHead& head, const ChoicePart& part, bool stream) {
  Json calls = Json::array();
  for (const ToolCallPart& call : part.piece.calls) {
    Json json = Json::object();
    if (stream) json["index"] = call.index;
    if (!call.name.empty()) {
      json["id"] = CallId(head, part.index, call.index);
      json["type"] = "function";
      json["function"]["name"] = call.name;
    }
    json["function"]["arguments"] = call.arguments;
    calls.push_back(std::move(json));
  }
  return calls;
}

Json Head(const AnswerHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.system_fingerprint}};
}

bool IsChat(const AnswerHead& head) { return head.api != Api::kCompletions; }

const char* ObjectOf(const AnswerHead& head, bool stream) {
  if (!IsChat(head)) return "text_completion";
  return stream ? "chat.completion.chunk" : "chat.completion";
}

Json TokensUsed(int64_t prompt, int64_t completion) {
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion}};
}

Json StreamEvent(const AnswerHead& head, Json choice, const ChoicePart& part, EventUsage usage) {
  Json json = Head(head, ObjectOf(head, true));
  json["choices"] = Json::array({std::move(choice)});
  if (usage == EventUsage::kNull) json["usage"] = nullptr;
  if (usage == EventUsage::kSoFar) {
    json["usage"] = TokensUsed(part.prompt_tokens, part.completion_tokens);
  }
  return json;
}

Json UsageJson(const Usage& usage) {
  Json json = TokensUsed(usage.prompt_tokens, usage.completion_tokens);
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  json["speculation"] = SpeculationJson(usage);
  return json;
}

Json ModelJson(const ModelInfo& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "specfabric"},
          {"root", model.root},
          {"parent", nullptr},
          {"max_model_len", model.context}};
}

}  // namespace

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

const char* Name(Exactness exactness) {
  switch (exactness) {
    case Exactness::kToken:
      return "token";
    case Exactness::kDistribution:
      return "distribution";
    case Exactness::kNone:
      return "none";
  }
  return "none";
}

Json ChatToken(const TokenEntry& entry, bool as_ids) {
  Json token = CandidateJson(entry.token, as_ids);
  token["top_logprobs"] = Json::array();
  for (const auto& candidate : entry.top) {
    token["top_logprobs"].push_back(CandidateJson(candidate, as_ids));
  }
  return token;
}

Json SpeculationJson(const Usage& usage) {
  return {{"rounds", usage.speculation.rounds},
          {"drafted", usage.speculation.drafted},
          {"accepted", usage.speculation.accepted},
          {"verification", schemas::Name(usage.speculation.verification)},
          {"accepted_per_position", usage.speculation.accepted_at}};
}

std::string CallId(const AnswerHead& head, int choice, int call) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  uint64_t bits = base::Mix64(base::Fnv1a(absl::StrCat(head.id, " ", choice, " ", call)));
  std::string id(9, '0');
  for (char& digit : id) {
    digit = kDigits[bits % kDigits.size()];
    bits /= kDigits.size();
  }
  return id;
}

std::string TokenName(base::TokenId id, const std::string& bytes) {
  if (bytes.empty()) return IdName(id);
  if (!FirstInvalidUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) {
    absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned char>(byte));
  }
  return name;
}

void TextPiece::Append(TextPiece next) {
  AppendTo(reasoning, std::move(next.reasoning));
  AppendTo(text, std::move(next.text));
  for (ToolCallPart& part : next.calls) {
    if (part.name.empty() && !calls.empty() && calls.back().index == part.index) {
      calls.back().arguments += part.arguments;
    } else {
      calls.push_back(std::move(part));
    }
  }
  AppendTo(entries, std::move(next.entries));
  AppendTo(ids, std::move(next.ids));
}

std::string Answer(const AnswerHead& head, absl::Span<const ChoicePart> choices,
                   const Usage& usage) {
  Json json = Head(head, ObjectOf(head, false));
  json["choices"] = Json::array();
  for (const ChoicePart& part : choices) {
    Json choice = {{"index", part.index}};
    if (IsChat(head)) {
      const bool calls = !part.piece.calls.empty();
      const bool silent = part.piece.text.empty() && (calls || !part.piece.reasoning.empty());
      choice["message"] = {{"role", "assistant"},
                           {"content", silent ? Json() : Json(part.piece.text)},
                           {"refusal", nullptr}};
      if (!part.piece.reasoning.empty()) {
        choice["message"]["reasoning_content"] = part.piece.reasoning;
      }
      if (calls) choice["message"]["tool_calls"] = ToolCalls(head, part, /*stream=*/false);
    } else {
      choice["text"] = part.piece.text;
    }
    AddRest(IsChat(head), part, choice);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = UsageJson(usage);
  json["metrics"] = MetricsJson(usage);
  json["exactness"] = Name(head.exactness);
  return Dump(json);
}

std::string Chunk(const AnswerHead& head, const ChoicePart& part, EventUsage usage) {
  Json choice = {{"index", part.index}};
  if (IsChat(head)) {
    choice["delta"] = Json::object();
    if (!part.piece.reasoning.empty()) choice["delta"]["reasoning_content"] = part.piece.reasoning;
    if (!part.piece.text.empty()) choice["delta"]["content"] = part.piece.text;
    if (!part.piece.calls.empty()) {
      choice["delta"]["tool_calls"] = ToolCalls(head, part, /*stream=*/true);
    }
  } else {
    choice["text"] = part.piece.text;
  }
  AddRest(IsChat(head), part, choice);
  Json json = StreamEvent(head, std::move(choice), part, usage);
  if (!part.finish_reason.empty()) json["exactness"] = Name(head.exactness);
  return Dump(json);
}

std::string RoleChunk(const AnswerHead& head, int index, int64_t prompt_tokens, EventUsage usage) {
  const ChoicePart part = {.index = index, .prompt_tokens = prompt_tokens};
  Json choice = {{"index", index}, {"delta", {{"role", "assistant"}, {"content", ""}}}};
  AddRest(IsChat(head), part, choice);
  return Dump(StreamEvent(head, std::move(choice), part, usage));
}

std::string UsageChunk(const AnswerHead& head, const Usage& usage) {
  Json json = Head(head, ObjectOf(head, true));
  json["choices"] = Json::array();
  json["usage"] = UsageJson(usage);
  json["metrics"] = MetricsJson(usage);
  json["exactness"] = Name(head.exactness);
  return Dump(json);
}

std::string ErrorBody(const ApiError& error) {
  return Dump({{"error",
                {{"message", OneLine(error.message)},
                 {"type", error.type},
                 {"param", error.param.empty() ? Json() : Json(error.param)},
                 {"code", error.code.empty() ? Json() : Json(error.code)}}}});
}

std::string ModelBody(const ModelInfo& model) { return Dump(ModelJson(model)); }

std::string ModelsBody(const std::vector<ModelInfo>& models) {
  Json data = Json::array();
  for (const ModelInfo& model : models) data.push_back(ModelJson(model));
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string TokenizeBody(absl::Span<const base::TokenId> tokens, int32_t context) {
  return Dump({{"count", tokens.size()},
               {"max_model_len", context},
               {"tokens", std::vector<base::TokenId>(tokens.begin(), tokens.end())}});
}

std::string DetokenizeBody(const std::string& prompt) { return Dump({{"prompt", prompt}}); }

std::string TokenizerInfoBody(const TokenizerInfo& info) {
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  // The class that Hugging Face's library has for any tokenizer.json.
  return Dump({{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"bos_token", text(info.bos_token)},
               {"eos_token", text(info.eos_token)},
               {"pad_token", nullptr},
               {"unk_token", nullptr},
               {"chat_template", text(info.chat_template)},
               {"vocab_size", info.vocabulary},
               {"model_max_length", info.context}});
}

std::string VersionBody(const std::string& version) { return Dump({{"version", version}}); }

std::string Event(const std::string& data) { return "data: " + data + "\n\n"; }

std::string NamedEvent(const std::string& name, const std::string& data) {
  return absl::StrCat("event: ", name, "\ndata: ", data, "\n\n");
}

}  // namespace specfabric::gateway
