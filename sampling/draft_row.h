#ifndef SPECFABRIC_SAMPLING_DRAFT_ROW_H_
#define SPECFABRIC_SAMPLING_DRAFT_ROW_H_

// What a draft samples from where the verification method needs its distribution q, as it goes over
// the wire: one prob a token, bfloat16, not normalised; q(x) = prob(x) / sum of the probs. The
// draft rounds and truncates first and then draws from exactly these numbers, because a q that
// differs from what the draft drew from is lossy (verification.md section 4).

#include <bit>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/isa.h"
#include "base/types.h"
#include "sampling/distribution.h"
#include "sampling/philox.h"
#include "sampling/uniform.h"

namespace specfabric::sampling {

// What CPUs and GPUs (model/cuda/draft_rows.h) do alike for the same bits: the largest prob there
// is, 1; how many sums of probs, by id, a total is made of; and the run of probs whose total
// draws go by.
constexpr uint16_t kLargestProb = 0x3F80;
constexpr int kProbSums = 128;
constexpr int kProbRun = 1024;

// As RoundToBFloat16, of what is never NaN.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE uint16_t RoundProb(float prob) {
  const uint32_t bits = std::bit_cast<uint32_t>(prob);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The number that the sibling is drawn by.
SPECFABRIC_HOST_DEVICE inline double SiblingUniform(uint64_t seed, const DrawSite& site,
                                                    uint32_t sibling) {
  return UniformFromWords(PhiloxWord(seed, site, 2 * sibling),
                          PhiloxWord(seed, site, 2 * sibling + 1));
}

// prob(x) = exp((logit(x) - max) / T) for the tokens that top-k, top-p and min-p keep, and, with
// `top_n` > 0, that are among the `top_n` heaviest (ties to the lowest id); 0 for the others. At
// T = 0 the arg-max alone has a prob. Where the logits are not all finite, no token has one.
// logits, probs: [vocabulary], not empty.
void MakeDraftProbs(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                    absl::Span<uint16_t> probs);

// Their sum, in an order that their ids alone decide: both sides come to the same bits.
double TotalProb(absl::Span<const uint16_t> probs);
// The same bits from the tokens that have a prob alone. ids: ascending, one for each prob;
// empty for whole rows.
double TotalProb(absl::Span<const uint16_t> probs, absl::Span<const base::TokenId> ids);

// What decides whether a row that was sent may be verified by, whoever has looked at it.
struct DraftRowFacts {
  double total = 0;      // TotalProb; no number one can use where a prob is none
  uint16_t highest = 0;  // of the probs as bits: what is negative, infinite or NaN is above the
                         // finite rest
  // The first id that is not above the one before it, or not of the vocabulary; -1: none.
  int32_t misplaced = -1;
  base::TokenId id = 0, previous = -1;
};
// ids: [entries], one for each prob; empty for whole rows.
DraftRowFacts FactsOf(absl::Span<const uint16_t> probs, absl::Span<const base::TokenId> ids,
                      int32_t vocabulary);

// q as the verifier's reference reads it. [vocabulary]; all 0 where no prob is.
Distribution Probabilities(absl::Span<const uint16_t> probs);

// `count` siblings in draw order, independent of each other. The random numbers are those of (seed,
// site), indices 2 * sibling and 2 * sibling + 1. None where no prob is.
std::vector<base::TokenId> DrawWithReplacement(absl::Span<const uint16_t> probs, int count,
                                               uint64_t seed, const DrawSite& site);

// Likewise, each from what the ones before it have left; fewer than `count` where nothing is left.
std::vector<base::TokenId> DrawWithoutReplacement(absl::Span<const uint16_t> probs, int count,
                                                  uint64_t seed, const DrawSite& site);

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_DRAFT_ROW_H_
