#ifndef SPECFABRIC_GATEWAY_OPENAI_PARSE_H_
#define SPECFABRIC_GATEWAY_OPENAI_PARSE_H_

// The bodies of OpenAI's requests as plain structs. Pure: no tokenizer, no model.
// foreign_options.h says which unsupported fields are refused and which ignored; unknown fields are
// ignored, and their names are kept for the answer.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/grammar.h"
#include "base/logit_rules.h"
#include "base/types.h"
#include "gateway/api.h"
#include "gateway/api_error.h"
#include "gateway/json_parse.h"
#include "gateway/reasoning.h"
#include "gateway/sampling_defaults.h"
#include "gateway/tool_format.h"

namespace specfabric::gateway {

using Prompt = std::variant<std::string, std::vector<base::TokenId>>;

// Whether the answer of a chat may call tools.
enum class ToolUse : uint8_t { kNone, kAllowed, kRequired };

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 8192;  // of a request's stop strings together
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxStopTokenIds = 1024;
constexpr int kMaxLogitBias = 512;
constexpr int kMaxPriority = 100;
constexpr int kMaxDraftTokens = 63;  // of a round

// A request that generates, of any API; all but completions are chats.
struct GenerationRequest {
  Api api = Api::kCompletions;
  bool chat() const { return api != Api::kCompletions; }
  std::string model;  // empty: the model that is served

  std::vector<Prompt> prompts;     // completions: at least one
  std::string messages;            // chat: JSON, contents flattened to strings
  std::string template_variables;  // chat: a JSON object of them; empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // chat: the answer goes on with its text
  std::string tools_json;               // chat: the request's tools for the template; empty: none
  std::vector<Tool> tools;              // that may be called
  ToolUse tool_use = ToolUse::kNone;
  bool parallel_tool_calls = true;
  ToolFormat tool_format = ToolFormat::kJson;  // Prepare sets it
  // Chat: whether the answer tells reasoning apart from its text, and whether it tells it at all.
  bool split_reasoning = true, include_reasoning = true;
  std::optional<Reasoning> reasoning;  // Prepare sets it where there may be some to split
  bool add_special_tokens = true;
  // How many tokens at the end of each prompt are kept; kFitPrompt: as many as the context has room
  // for besides max_tokens; 0: all.
  int64_t keep_prompt_tokens = 0;

  int n = 1;                          // choices of each prompt
  std::optional<int64_t> max_tokens;  // at least 0; without it the context is the limit
  bool ignore_eos = false;            // end tokens do not end the output
  std::vector<std::string> stop;
  bool include_stop = false;  // the text includes the stop string or token that ended the output
  std::vector<base::TokenId> stop_token_ids;

  base::SamplingParams sampling;
  base::LogitRules rules;             // Prepare sets suppressed_token_ids
  bool has_seed = false;              // false: the caller draws sampling.seed
  base::Grammar grammar;              // of the output,
  std::string grammar_field;          // and the field that has it
  bool grammar_of_reasoning = false;  // it describes reasoning before the text as well
  std::string verification;        // name of the method, unchecked; empty: the target's own choice
  std::string verification_field;  // that names it
  bool speculate = true;           // as schemas::SequenceRequest, as are the next two
  int max_draft_tokens = kMaxDraftTokens;
  std::string drafter;

  int priority = 0;         // higher first; in the request, lower first
  std::string cache_salt;   // empty: none
  base::Nanos timeout = 0;  // for the whole answer; 0: none
  // Target for the time of each output token after the first; 0: none.
  base::Nanos tpot_slo = 0;

  bool stream = false;
  bool include_usage = false;
  bool usage_in_each = false;  // event of a stream, where its last has the usage
  bool echo = false;           // completions
  int logprobs = -1;           // top log-probabilities of each token; -1: none
  int prompt_logprobs = -1;    // of each prompt token, as a list of its own; -1: none
  bool return_token_ids = false;
  bool skip_special_tokens = true;  // special tokens have no text
  bool tokens_as_ids = false;       // log-probabilities name tokens by id

  std::string echoed;                       // responses: a JSON object that the answer repeats
  std::vector<std::string> ignored_fields;  // unknown ones
};

constexpr int64_t kFitPrompt = -1;

// `defaults`: for fields that the request leaves out.
Parsed<GenerationRequest> ParseCompletion(std::string_view body,
                                          const SamplingDefaults& defaults = {});
Parsed<GenerationRequest> ParseChat(std::string_view body, const SamplingDefaults& defaults = {});
// The same of a chat's fields that were read already.
Parsed<GenerationRequest> ParseChatFields(Json body, const SamplingDefaults& defaults);

struct TokenizeRequest {
  std::string model;
  std::string prompt;
  std::string messages;            // instead of prompt if not empty
  std::string template_variables;  // for messages: a JSON object; empty: none
  std::string tools_json;          // likewise: a list; empty: none
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
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
