#ifndef SPECFABRIC_BASE_LOGIT_RULES_H_
#define SPECFABRIC_BASE_LOGIT_RULES_H_

// What a request changes of the target's logits before temperature and filters. Kept apart from
// SamplingParams because drafts are not told: their draft tokens are checked against the changed
// logits, whatever they were drawn from.

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace specfabric::base {

struct LogitBias {
  TokenId token = kNoToken;
  float value = 0.0f;  // added to the logit, in [-100, 100]
  bool operator==(const LogitBias&) const = default;
};

// For a token with n occurrences in the output so far, in this order (vLLM's):
//   logit += bias
//   logit  = logit > 0 ? logit / repetition_penalty : logit * repetition_penalty,
//            if the token is in the prompt or in the output
//   logit -= n * frequency_penalty, and presence_penalty once if n > 0.
// Then tokens that cannot be chosen get the lowest float32: those that a grammar does not allow
// (`masked`: each row has a mask of those that it does), and the suppressed token ids as any of the
// first min_tokens output tokens, except where the grammar allows nothing else.
struct LogitRules {
  float presence_penalty = 0.0f;     // in [-2, 2]
  float frequency_penalty = 0.0f;    // in [-2, 2]
  float repetition_penalty = 1.0f;   // above 0; 1 changes nothing
  std::vector<LogitBias> bias = {};  // ascending ids
  int32_t min_tokens = 0;
  std::vector<TokenId> suppressed_token_ids =
      {};  // end tokens and stop ids; needed where min_tokens > 0
  bool masked = false;

  bool operator==(const LogitRules&) const = default;
  // Whether the text so far matters, and whether the prompt is a part of it.
  bool penalises() const {
    return presence_penalty != 0.0f || frequency_penalty != 0.0f || counts_prompt();
  }
  bool counts_prompt() const { return repetition_penalty != 1.0f; }
  // Whether the logits of the output token after `output_size` others are changed.
  bool ChangeAt(int32_t output_size) const {
    return masked || penalises() || !bias.empty() || SuppressesAt(output_size);
  }
  bool SuppressesAt(int32_t output_size) const {
    return output_size < min_tokens && !suppressed_token_ids.empty();
  }
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_LOGIT_RULES_H_
