#ifndef SPECFABRIC_SAMPLING_SAMPLING_H_
#define SPECFABRIC_SAMPLING_SAMPLING_H_

// From logits to a token with the coupled Gumbel noise (verification.md sections 0 and 1). The
// reference is short and in double precision; the fast one works on a shard of the vocabulary in
// float32. Both choose arg-max of  logit(x) + T * g(seed, position, x)  over the tokens that the
// filters keep; ties go to the lowest id; T = 0 is greedy.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"

namespace specfabric::sampling {

// A candidate token and its perturbed score. The order of candidates is (higher score, lower id).
struct ScoredToken {
  base::TokenId token = base::kNoToken;
  float score = 0.0f;
};
inline bool Better(const ScoredToken& a, const ScoredToken& b) {
  if (b.token == base::kNoToken) return a.token != base::kNoToken;
  if (a.token == base::kNoToken) return false;
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

// The best score of a row whose logits are not all finite: no token can be chosen by them.
inline constexpr float kNotFinite = std::numeric_limits<float>::infinity();

// arg-max over one shard; no filters. logits: [n], of ids first .. first + n. noise: [n] from
// GumbelNoise, ignored at temperature 0. The all-reduce of such pairs by Better() is the choice. A
// logit that is not finite scores kNotFinite, so that the row shows it whatever shard it is in.
ScoredToken PerturbedArgMax(absl::Span<const float> logits, absl::Span<const float> noise,
                            float temperature, int32_t first);

// The k best of the same scores, best first: the draft's children at a node (Gumbel top-k). NaN
// scores are never among them. *finite is set to whether all logits are finite, and left unchanged
// if k is 0.
std::vector<ScoredToken> PerturbedTopK(absl::Span<const float> logits,
                                       absl::Span<const float> noise, float temperature, int k,
                                       bool* finite = nullptr);
// The same into *best_tokens, which keeps its memory.
void PerturbedTopK(absl::Span<const float> logits, absl::Span<const float> noise, float temperature,
                   int k, std::vector<ScoredToken>* best_tokens, bool* finite = nullptr);

// Marks the tokens that temperature, top-k, top-p and min-p keep. logits: whole row, [vocabulary].
// At least one token is kept, but none where the logits are not all finite. Exact and independent
// of the order of equal logits (ties at the top-k or top-p border go to the lowest ids).
std::vector<uint8_t> FilterMask(absl::Span<const float> logits,
                                const base::SamplingParams& sampling);

// The tokens that FilterMask marks, with their logits, in no order. *kept keeps its memory.
void KeptTokens(absl::Span<const float> logits, const base::SamplingParams& sampling,
                std::vector<ScoredToken>* kept);

// Filters, then the perturbed arg-max, on a whole row. noise: [vocabulary]. kNoToken: the logits
// are not all finite. *scratch: what KeptTokens found, if there are filters.
base::TokenId SampleRow(absl::Span<const float> logits, absl::Span<const float> noise,
                        const base::SamplingParams& sampling, std::vector<ScoredToken>* scratch);
base::TokenId SampleRow(absl::Span<const float> logits, absl::Span<const float> noise,
                        const base::SamplingParams& sampling);

// The readable reference of SampleRow, double precision, straight from verification.md: used by
// tests as the oracle of every faster path.
base::TokenId SampleRowReference(absl::Span<const float> logits,
                                 const base::SamplingParams& sampling, uint32_t position);

// Log-probabilities (temperature 1, unfiltered) of `token` and of the `top` most likely tokens;
// they are finite. Without a token: the logits are not all finite.
base::TokenLogprobs RowLogprobs(absl::Span<const float> logits, base::TokenId token, int top);

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_SAMPLING_H_
