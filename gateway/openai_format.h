#ifndef SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_
#define SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_

// Formats answers of completions and chats as OpenAI's JSON, and what else has its form. Pure.

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "base/types.h"
#include "gateway/answer.h"
#include "gateway/api_error.h"
#include "gateway/json_parse.h"

namespace specfabric::gateway {

// A token's name in an answer: its text, or "bytes:\xNN..." if its bytes are not whole characters,
// or "token_id:N" if it has none.
std::string TokenName(base::TokenId id, const std::string& bytes);

// Parts that other formats have as well.
std::string Dump(const Json& json);
std::string OneLine(std::string text);
const char* Name(Exactness exactness);
// A token's log-probability and its candidates', as chats have it.
Json ChatToken(const TokenEntry& entry, bool as_ids);
Json SpeculationJson(const Usage& usage);
// The id of a call of a tool: nine letters and digits, as Mistral's templates want it.
std::string CallId(const AnswerHead& head, int choice, int call);

// A whole answer.
std::string Answer(const AnswerHead& head, absl::Span<const ChoicePart> choices,
                   const Usage& usage);
// What the events of a stream say of its usage before its last one: nothing, null, or what their
// choice has used until then.
enum class EventUsage : uint8_t { kAbsent, kNull, kSoFar };

// One event of a stream.
std::string Chunk(const AnswerHead& head, const ChoicePart& part, EventUsage usage);
// The first event of each choice of a chat: the role alone. Clients append later events to the
// members of the first one; OpenAI's JavaScript client would add log-probabilities of the first
// event twice.
std::string RoleChunk(const AnswerHead& head, int index, int64_t prompt_tokens, EventUsage usage);
std::string UsageChunk(const AnswerHead& head, const Usage& usage);

std::string ErrorBody(const ApiError& error);

struct ModelInfo {
  std::string name;
  int64_t created = 0;
  std::string root;     // as in vLLM, the path of the checkpoint: clients load its tokenizer
  int32_t context = 0;  // tokens, prompt and output
};
std::string ModelBody(const ModelInfo& model);
std::string ModelsBody(const std::vector<ModelInfo>& models);
std::string TokenizeBody(absl::Span<const base::TokenId> tokens, int32_t context);
std::string DetokenizeBody(const std::string& prompt);

// What clients that tokenize by this server ask of its tokenizer. Texts are of the tokens; empty:
// there is none.
struct TokenizerInfo {
  std::string bos_token, eos_token, chat_template;
  int32_t vocabulary = 0;
  int32_t context = 0;
};
std::string TokenizerInfoBody(const TokenizerInfo& info);
std::string VersionBody(const std::string& version);

// `data` as one server-sent event.
std::string Event(const std::string& data);
std::string NamedEvent(const std::string& name, const std::string& data);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_
