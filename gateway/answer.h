#ifndef SPECFABRIC_GATEWAY_ANSWER_H_
#define SPECFABRIC_GATEWAY_ANSWER_H_

// What an answer holds, whatever API it is written for.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "gateway/api.h"
#include "gateway/tool_parser.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

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
  std::string reasoning = {};  // that precedes the text
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
  std::optional<std::vector<TokenEntry>> prompt_logprobs = {};      // the same
  std::string finish_reason = {};  // "stop", "length" or "tool_calls"; empty: the output goes on
  std::string stop = {};           // the stop string that ended the output; empty: none did
  int64_t prompt_tokens = 0;       // of the choice
  int64_t completion_tokens = 0;   // the same, until the end of this part
};

// The guarantee for an answer (docs/exactness.md): the same tokens as without speculation; the same
// distribution; or neither.
enum class Exactness : uint8_t { kToken, kDistribution, kNone };

// The fields that all parts of an answer share.
struct AnswerHead {
  Api api = Api::kCompletions;
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
  int64_t cached_tokens = 0;     // prompt tokens found in the prefix cache
  int64_t reasoning_tokens = 0;  // of the completion's
  size_t choices = 1;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ANSWER_H_
