#ifndef SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_
#define SPECFABRIC_GATEWAY_OPENAI_FORMAT_H_

// Answers as OpenAI's JSON. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"
#include "gateway/api_error.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

// A token as clients see it: its bytes as text, or "bytes:\xNN..." where they are not whole
// characters, or "token_id:N" where it has none.
std::string TokenName(base::TokenId id, const std::string& bytes);

// One token's log-probabilities in an answer.
struct TokenEntry {
  struct Candidate {
    base::TokenId id = base::kNoToken;
    std::string bytes;
    float logprob = 0;
  };
  Candidate token = {};
  bool scored = true;               // false for the first token of a prompt, which follows nothing
  std::vector<Candidate> top = {};  // most likely first
  int64_t offset = 0;               // characters (code points) of the text before it
};

// Tokens of one choice and their text.
struct TextPiece {
  std::string text = {};
  std::vector<TokenEntry> entries = {};  // [ids] if log-probabilities are requested
  std::vector<base::TokenId> ids = {};   // of the output

  void Append(TextPiece next);
};

// One choice of an answer, or what is new of it in a stream.
struct ChoicePart {
  int index = 0;
  TextPiece piece = {};
  bool with_logprobs = false;
  bool tokens_as_ids = false;  // entries name all tokens "token_id:N"
  bool with_token_ids = false;
  std::optional<std::vector<base::TokenId>> prompt_token_ids = {};  // if requested, once
  std::string finish_reason = {};  // "stop", "length", or not yet: empty
};

// What is promised of an answer's text (docs/exactness.md): these very tokens; their distribution,
// that of plain sampling; or neither.
enum class Exactness : uint8_t { kToken, kDistribution, kNone };

// What all parts of an answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;
  int64_t created = 0;  // s since 1970
  std::string model;
  std::string system_fingerprint;  // of the target's numerics
  Exactness exactness = Exactness::kToken;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  schemas::Speculation speculation = {};
  int64_t cached_tokens = 0;  // of prompt_tokens, not computed anew
};

// The whole answer at once.
std::string Answer(const AnswerHead& head, absl::Span<const ChoicePart> choices,
                   const Usage& usage);
// One event of a stream. `usage_follows`: the stream ends with usage, so its other events say
// "usage": null.
std::string Chunk(const AnswerHead& head, const ChoicePart& part, bool usage_follows);
// A chat's first event of each choice: the role alone. Clients take the first event's members as a
// choice's beginning and add to them; the official JavaScript client adds that event's own
// log-probabilities twice.
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
