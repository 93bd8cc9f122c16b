#ifndef SPECFABRIC_GATEWAY_OPENAI_PARSE_H_
#define SPECFABRIC_GATEWAY_OPENAI_PARSE_H_

// The bodies of OpenAI's requests as plain structs. Pure: no tokenizer, no model. Fields that this
// server does not honour are refused unless they hold their neutral value; fields that nobody has
// heard of are ignored, as OpenAI's servers do.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/logit_rules.h"
#include "base/types.h"
#include "gateway/api_error.h"

namespace specfabric::gateway {

using Prompt = std::variant<std::string, std::vector<base::TokenId>>;

constexpr int kMaxStops = 4;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxStopTokenIds = 1024;
constexpr int kMaxLogitBias = 512;
constexpr int kMaxPriority = 100;

// What /v1/completions and /v1/chat/completions have in common, and what each has of its own.
struct GenerationRequest {
  bool chat = false;
  std::string model;  // empty: whatever is served

  std::vector<Prompt> prompts;  // completions: at least one
  std::string messages;         // chat: JSON, contents flattened to strings
  bool add_generation_prompt = true;
  bool add_special_tokens = true;

  int n = 1;                          // choices a prompt
  std::optional<int64_t> max_tokens;  // at least 0; nothing means up to the context
  bool ignore_eos = false;            // end tokens do not end the output
  std::vector<std::string> stop;
  std::vector<base::TokenId> stop_token_ids;

  base::SamplingParams sampling;
  base::LogitRules rules;  // barred_ids left to Prepare
  bool has_seed = false;   // otherwise the caller draws sampling.seed
  std::string coupling;    // by name, unchecked; empty: the target's own

  int priority = 0;         // higher first, unlike in the request
  std::string cache_salt;   // empty: none
  base::Nanos timeout = 0;  // for the whole answer; 0: none
  // What is wanted of the time of an output token after the first, at most; 0: nothing.
  base::Nanos tpot_slo = 0;

  bool stream = false;
  bool include_usage = false;
  bool echo = false;  // completions
  int logprobs = -1;  // most likely alternatives to report a token; -1 reports nothing
  bool return_token_ids = false;
};

Parsed<GenerationRequest> ParseCompletion(std::string_view body);
Parsed<GenerationRequest> ParseChat(std::string_view body);

struct TokenizeRequest {
  std::string model;
  std::string prompt;
  std::string messages;  // instead of prompt if not empty
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
};
Parsed<TokenizeRequest> ParseTokenize(std::string_view body);

struct DetokenizeRequest {
  std::string model;
  std::vector<base::TokenId> tokens;
};
Parsed<DetokenizeRequest> ParseDetokenize(std::string_view body);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_OPENAI_PARSE_H_
