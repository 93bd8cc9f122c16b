#ifndef SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_
#define SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_

// Formats answers as OpenAI's JSON. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"
#include "gateway/api_error.h"
#include "gateway/tool_parser.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

// A token's name in an answer: its text, or "bytes:\xNN..." if its bytes are not whole characters,
// or "token_id:N" if it has none.
std::string TokenName(base::TokenId id, const std::string& bytes);

// One token's log-probabilities in an answer.
struct TokenEntry {
  struct Candidate {
    base::TokenId id = base::kNoToken;
    std::string bytes;
    float logprob = 0;
  };
  Candidate token = {};
  bool scored = true;               // false for the first token of a prompt
  std::vector<Candidate> top = {};  // most likely first
  int64_t offset = 0;               // characters (code points) of the text before it
};

// Tokens of one choice and their text.
struct TextPiece {
  std::string text = {};
  std::vector<ToolCallPart> calls = {};  // of tools, whose text is not in `text`
  std::vector<TokenEntry> entries = {};  // [ids] if log-probabilities are requested
  std::vector<base::TokenId> ids = {};   // of the output

  void Append(TextPiece next);
};

// One choice of an answer, or its new output in a stream.
struct ChoicePart {
  int index = 0;
  TextPiece piece = {};
  bool with_logprobs = false;
  bool tokens_as_ids = false;  // entries name all tokens "token_id:N"
  bool with_token_ids = false;
  std::optional<std::vector<base::TokenId>> prompt_token_ids = {};  // if requested, once
  std::string finish_reason = {};  // "stop", "length" or "tool_calls"; empty: the output goes on
};

// The guarantee for an answer (docs/exactness.md): the same tokens as without speculation; the same
// distribution; or neither.
enum class Exactness : uint8_t { kToken, kDistribution, kNone };

// The fields that all parts of an answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;
  int64_t created = 0;  // Unix time in seconds
  std::string model;
  std::string system_fingerprint;  // of the target's numerics
  Exactness exactness = Exactness::kToken;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  schemas::Speculation speculation = {};
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
};

// A whole answer.
std::string Answer(const AnswerHead& head, absl::Span<const ChoicePart> choices,
                   const Usage& usage);
// One event of a stream. `usage_follows`: the stream ends with a usage event, so the other events
// have "usage": null.
std::string Chunk(const AnswerHead& head, const ChoicePart& part, bool usage_follows);
// The first event of each choice of a chat: the role alone. Clients append later events to the
// members of the first one; OpenAI's JavaScript client would add log-probabilities of the first
// event twice.
std::string RoleChunk(const AnswerHead& head, int index, bool usage_follows);
std::string UsageChunk(const AnswerHead& head, const Usage& usage);

std::string ErrorBody(const ApiError& error);

struct ModelInfo {
  std::string name;
  int64_t created = 0;
  int32_t context = 0;  // tokens, prompt and output
};
std::string ModelBody(const ModelInfo& model);
std::string ModelsBody(const ModelInfo& model);
std::string TokenizeBody(absl::Span<const base::TokenId> tokens, int32_t context);
std::string DetokenizeBody(const std::string& prompt);
std::string VersionBody(const std::string& version);

// `data` as one server-sent event.
std::string Event(const std::string& data);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_
