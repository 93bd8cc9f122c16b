#ifndef SPECFABRIC_SAMPLING_DRAFT_ROW_H_
#define SPECFABRIC_SAMPLING_DRAFT_ROW_H_

// One row of draft probabilities q in the form in which it is sent: one bfloat16 number per token,
// not normalised; q(x) = probs[x] / (sum of probs). The draft rounds and truncates first and then
// draws from exactly these numbers, because verification with any other q would be lossy
// (verification.md section 4).

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

// Shared by CPUs and GPUs (verification/cuda/draft_rows.h), so that both compute the same bits: the
// largest value, 1.0 in bfloat16; the number of partial sums, by id, of a total; and the length of
// the runs whose sums a draw skips over.
constexpr uint16_t kLargestProb = 0x3F80;
constexpr int kProbSums = 128;
constexpr int kProbRun = 1024;

// RoundToBFloat16 for a value that is not NaN.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE uint16_t RoundProb(float prob) {
  const uint32_t bits = std::bit_cast<uint32_t>(prob);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The uniform number that decides the draw of this sibling.
SPECFABRIC_HOST_DEVICE inline double SiblingUniform(uint64_t seed, const DrawSite& site,
                                                    uint32_t sibling) {
  return UniformFromWords(PhiloxWord(seed, site, 2 * sibling),
                          PhiloxWord(seed, site, 2 * sibling + 1));
}

// probs[x] = exp((logit(x) - max) / T) for the tokens that top-k, top-p and min-p keep and that,
// with `top_n` > 0, are among the `top_n` likeliest (ties to the lowest id); 0 for the others. At T
// = 0 only the arg-max is not 0. All are 0 if any logit is not finite. logits, probs: [vocabulary],
// not empty.
void MakeDraftProbs(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                    absl::Span<uint16_t> probs);

// Sum of the row, added in an order that depends only on token ids, so that draft and target get
// the same bits.
double TotalProb(absl::Span<const uint16_t> probs);
// The same bits from a row cut to its non-zero entries. ids: [entries], ascending; empty for whole
// rows.
double TotalProb(absl::Span<const uint16_t> probs, absl::Span<const base::TokenId> ids);

// What a received row is validated by, on a CPU or a GPU.
struct DraftRowFacts {
  double total = 0;      // TotalProb; meaningless if an entry is not finite
  uint16_t highest = 0;  // largest entry as bits; negative, infinite and NaN compare above the rest
  // Index of the first id that is not above the one before it or not in the vocabulary; -1: none.
  int32_t misplaced = -1;
  base::TokenId id = 0, previous = -1;
};
// ids: [entries]; empty for whole rows.
DraftRowFacts FactsOf(absl::Span<const uint16_t> probs, absl::Span<const base::TokenId> ids,
                      int32_t vocabulary);

// q, normalised, as the reference verifiers read it: [vocabulary]. All 0 if the row is all 0.
Distribution Probabilities(absl::Span<const uint16_t> probs);

// Draws `count` siblings independently, in draw order, with the random numbers of (seed, site),
// indices 2 * sibling and 2 * sibling + 1. Empty if the row is all 0.
std::vector<base::TokenId> DrawWithReplacement(absl::Span<const uint16_t> probs, int count,
                                               uint64_t seed, const DrawSite& site);

// Draws each sibling from the tokens that are left by those before it; fewer than `count` if none
// are left.
std::vector<base::TokenId> DrawWithoutReplacement(absl::Span<const uint16_t> probs, int count,
                                                  uint64_t seed, const DrawSite& site);

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_DRAFT_ROW_H_
