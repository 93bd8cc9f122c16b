#ifndef SPECFABRIC_SPECULATION_PROPOSAL_H_
#define SPECFABRIC_SPECULATION_PROPOSAL_H_

// What a draft samples from where the coupling needs its distribution q, as it goes over the wire:
// one weight a token, bfloat16, not normalised; q(x) = weight(x) / sum of the weights. The draft
// rounds and truncates first and then draws from exactly these numbers, because a q that differs
// from what the draft drew from is lossy (verification.md section 4).

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/philox.h"
#include "base/types.h"
#include "speculation/distribution.h"

namespace specfabric::speculation {

// weight(x) = exp((logit(x) - max) / T) for the tokens that top-k, top-p and min-p keep, and, with
// `top_n` > 0, that are among the `top_n` heaviest (ties to the lowest id); 0 for the others. At
// T = 0 the arg-max alone has a weight. logits, weights: [vocabulary], not empty.
void MakeWeights(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                 absl::Span<uint16_t> weights);

// Their sum, in an order that their ids alone decide: both sides come to the same bits.
double TotalWeight(absl::Span<const uint16_t> weights);
// The same bits from the tokens that have a weight alone. ids: ascending, one for each weight;
// empty for whole rows.
double TotalWeight(absl::Span<const uint16_t> weights, absl::Span<const base::TokenId> ids);

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
