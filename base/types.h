#ifndef SPECFABRIC_BASE_TYPES_H_
#define SPECFABRIC_BASE_TYPES_H_

// The few plain types that every layer shares.

#include <cstdint>
#include <utility>
#include <vector>

namespace specfabric::base {

// An index into the model's vocabulary. Negative values are never tokens.
using TokenId = int32_t;
constexpr TokenId kNoToken = -1;

// Names one sequence (one choice of one request) for the life of a target process.
using SequenceId = uint64_t;

// What the user asked of sampling; every field is honoured by drafts (as a hint) and by the target
// (exactly). Applied in this order, after base/logit_rules.h: temperature, top-k, top-p, min-p.
struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  int32_t top_k = 0;         // keep the k most likely tokens; 0 keeps all
  float top_p = 1.0f;        // keep the smallest set whose mass reaches top_p, in (0, 1]
  float min_p = 0.0f;        // keep tokens with p >= min_p * max p, in [0, 1)
  uint64_t seed = 0;         // key of all random numbers of the sequence

  bool operator==(const SamplingParams&) const = default;
  constexpr bool greedy() const { return temperature == 0.0f; }
  constexpr bool filtered() const { return top_k > 0 || top_p < 1.0f || min_p > 0.0f; }
};

// The target's log-probabilities (natural, of the temperature-1 distribution before penalties, bias
// and filters, as OpenAI reports them) for one emitted or scored token.
struct TokenLogprobs {
  TokenId token = kNoToken;
  float logprob = 0.0f;
  std::vector<std::pair<TokenId, float>> top;  // most likely first, ties to the lowest id
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_TYPES_H_
