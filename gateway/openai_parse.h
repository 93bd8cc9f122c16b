#ifndef SPECFABRIC_GATEWAY_OPENAI_PARSE_H_
#define SPECFABRIC_GATEWAY_OPENAI_PARSE_H_

// The bodies of OpenAI's requests as plain structs. Pure: no tokenizer, no model. What becomes of
// fields that this server does not honour is said in foreign_options.h; those that nobody has heard
// of are ignored, and their names kept for the answer.

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
#include "gateway/sampling_defaults.h"

namespace specfabric::gateway {

using Prompt = std::variant<std::string, std::vector<base::TokenId>>;

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 8192;  // of a request's stop strings together
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxStopTokenIds = 1024;
constexpr int kMaxLogitBias = 512;
constexpr int kMaxPriority = 100;

// What /v1/completions and /v1/chat/completions have in common, and what each has of its own.
struct GenerationRequest {
  bool chat = false;
  std::string model;  // empty: whatever is served

  std::vector<Prompt> prompts;     // completions: at least one
  std::string messages;            // chat: JSON, contents flattened to strings
  std::string template_variables;  // chat: a JSON object of them; empty: none
  bool add_generation_prompt = true;
  bool add_special_tokens = true;
  // Only so many tokens of each prompt are kept, its last; kFitPrompt: as many as the context
  // leaves beside the output asked for; 0: all.
  int64_t keep_prompt_tokens = 0;

  int n = 1;                          // choices a prompt
  std::optional<int64_t> max_tokens;  // at least 0; nothing means up to the context
  bool ignore_eos = false;            // end tokens do not end the output
  std::vector<std::string> stop;
  bool include_stop = false;  // the stop string or token that ended an output is part of its text
  std::vector<base::TokenId> stop_token_ids;

  base::SamplingParams sampling;
  base::LogitRules rules;    // suppressed_token_ids left to Prepare
  bool has_seed = false;     // otherwise the caller draws sampling.seed
  std::string verification;  // by name, unchecked; empty: the target's own

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
  bool skip_special_tokens = true;  // they have no text
  bool tokens_as_ids = false;       // log-probabilities name tokens by their ids

  std::vector<std::string> ignored_fields;  // unknown ones
};

constexpr int64_t kFitPrompt = -1;

// `defaults`: for what a request leaves out.
Parsed<GenerationRequest> ParseCompletion(std::string_view body,
                                          const SamplingDefaults& defaults = {});
Parsed<GenerationRequest> ParseChat(std::string_view body, const SamplingDefaults& defaults = {});

struct TokenizeRequest {
  std::string model;
  std::string prompt;
  std::string messages;            // instead of prompt if not empty
  std::string template_variables;  // for messages: a JSON object; empty: none
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
  std::vector<std::string> ignored_fields;
};
Parsed<TokenizeRequest> ParseTokenize(std::string_view body);

struct DetokenizeRequest {
  std::string model;
  std::vector<base::TokenId> tokens;
  std::vector<std::string> ignored_fields;
};
Parsed<DetokenizeRequest> ParseDetokenize(std::string_view body);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_OPENAI_PARSE_H_
