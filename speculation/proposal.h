#ifndef SPECFABRIC_SPECULATION_PROPOSAL_H_
#define SPECFABRIC_SPECULATION_PROPOSAL_H_

// What a draft samples from where the coupling needs its distribution q, as it goes over the wire:
// one weight a token, bfloat16, not normalised; q(x) = weight(x) / sum of the weights. The draft
// rounds and truncates first and then draws from exactly these numbers, because a q that differs
// from what the draft drew from is lossy (verification.md section 4).

#include <bit>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/isa.h"
#include "base/philox.h"
#include "base/types.h"
#include "speculation/distribution.h"
#include "speculation/randomness.h"

namespace specfabric::speculation {

// What CPUs and GPUs (model/cuda/draft_rows.h) do alike for the same bits: the largest weight there
// is, 1; how many sums of weights, by id, a total is made of; and the run of weights whose total
// draws go by.
constexpr uint16_t kLargestWeight = 0x3F80;
constexpr int kWeightSums = 128;
constexpr int kWeightRun = 1024;

// As RoundToBFloat16, of what is never NaN.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE uint16_t RoundWeight(float weight) {
  const uint32_t bits = std::bit_cast<uint32_t>(weight);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The number that the sibling is drawn by.
SPECFABRIC_HOST_DEVICE inline double SiblingUniform(uint64_t seed, const base::DrawSite& site,
                                                    uint32_t sibling) {
  return UniformFromWords(base::PhiloxWord(seed, site, 2 * sibling),
                          base::PhiloxWord(seed, site, 2 * sibling + 1));
}

// weight(x) = exp((logit(x) - max) / T) for the tokens that top-k, top-p and min-p keep, and, with
// `top_n` > 0, that are among the `top_n` heaviest (ties to the lowest id); 0 for the others. At
// T = 0 the arg-max alone has a weight. Where the logits are not all finite, no token has one.
// logits, weights: [vocabulary], not empty.
void MakeWeights(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                 absl::Span<uint16_t> weights);

// Their sum, in an order that their ids alone decide: both sides come to the same bits.
double TotalWeight(absl::Span<const uint16_t> weights);
// The same bits from the tokens that have a weight alone. ids: ascending, one for each weight;
// empty for whole rows.
double TotalWeight(absl::Span<const uint16_t> weights, absl::Span<const base::TokenId> ids);

// What decides whether a row that was sent may be verified by, whoever has looked at it.
struct WeightRowFacts {
  double total = 0;      // TotalWeight; no number one can use where a weight is none
  uint16_t highest = 0;  // of the weights as bits: what is negative, infinite or NaN is above the
                         // finite rest
  // The first id that is not above the one before it, or not of the vocabulary; -1: none.
  int32_t misplaced = -1;
  base::TokenId id = 0, previous = -1;
};
// ids: [entries], one for each weight; empty for whole rows.
WeightRowFacts FactsOf(absl::Span<const uint16_t> weights, absl::Span<const base::TokenId> ids,
                       int32_t vocabulary);

// q as the verifier's reference reads it. [vocabulary]; all 0 where no weight is.
Distribution Probabilities(absl::Span<const uint16_t> weights);

// `count` siblings in draw order, independent of each other. The random numbers are those of (seed,
// site), indices 2 * sibling and 2 * sibling + 1. None where no weight is.
std::vector<base::TokenId> DrawWithReplacement(absl::Span<const uint16_t> weights, int count,
                                               uint64_t seed, const base::DrawSite& site);

// Likewise, each from what the ones before it have left; fewer than `count` where nothing is left.
std::vector<base::TokenId> DrawWithoutReplacement(absl::Span<const uint16_t> weights, int count,
                                                  uint64_t seed, const base::DrawSite& site);

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_PROPOSAL_H_
