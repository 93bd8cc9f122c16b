#ifndef SPECFABRIC_VERIFICATION_CPU_ROW_DISTRIBUTION_H_
#define SPECFABRIC_VERIFICATION_CPU_ROW_DISTRIBUTION_H_

// The target's distribution at one node, p = softmax(logit / T) over the tokens that the filters
// keep, and the residuals that rejected siblings leave: sampling/distribution.h in float32, fast
// enough for vocabularies of real size. Unnormalised probabilities are float32, sums are double.
// Used by one thread at a time.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/isa.h"
#include "base/types.h"
#include "sampling/sampling.h"
#include "verification/cpu/row_kernels.h"

namespace specfabric::verification {

// At most the siblings of one node.
using TakenTokens = absl::InlinedVector<base::TokenId, 16>;

// The distribution that the draft drew a sibling from: q(x) = draft_probs(x) / total. The peer that
// sent it may still write to draft_probs and ids: then some tokens of this sequence are accepted or
// rejected wrongly, and nothing else happens.
struct DraftDistribution {
  absl::Span<const uint16_t> draft_probs;    // bfloat16; finite, not negative
  absl::Span<const base::TokenId> ids = {};  // ascending; empty: the whole vocabulary
  TakenTokens taken = {};                    // tokens whose probability counts as 0, no duplicates
  double total = 0;                          // of the draft_probs of all other tokens

  bool whole() const { return ids.empty(); }
  double UnnormalizedProb(base::TokenId token) const;
};

// Scratch memory that the distributions of one thread share.
struct RowScratch {
  RowScratch(int32_t vocabulary, base::Isa isa);

  const int32_t vocabulary;
  const int32_t chunks;
  const RowKernels& kernels;
  std::vector<float> spare;        // [chunks][kRowChunk], in which the next residual is computed
  std::vector<double> spare_sums;  // [chunks]
  std::vector<float> filtered;     // [vocabulary], logits after the filters
  std::vector<sampling::ScoredToken> kept;  // tokens that the filters keep
  std::vector<base::TokenId> changed;       // tokens that SubtractSparse changes, in its order,
  std::vector<float> old;                   // and the value of each before that
  std::array<float, kRowChunk> probs;
  std::array<float, kRowChunk> logits_tail;
  std::array<uint16_t, kRowChunk> draft_tail;
};

class RowDistribution {
 public:
  explicit RowDistribution(RowScratch* scratch) : scratch_(*scratch), chunks_(scratch->chunks) {}

  // Computes p from these logits, [vocabulary], for T > 0, in one pass over them. False: they are
  // not all finite, and there is no p. With `keep` the logits are not needed afterwards; otherwise
  // they must stay unchanged until the first Subtract, and until then no other distribution of the
  // scratch may be opened.
  bool Open(absl::Span<const float> logits, const base::SamplingParams& sampling, bool keep);

  double Probability(base::TokenId token) const;
  // Only before the first Subtract, and for a distribution opened without `keep`.
  double InversePerplexity();
  // The first token, in order of ids, at which the running sum of p exceeds `uniform`, in (0, 1).
  base::TokenId Sample(double uniform);

  // min(1, pi p(x) / q(x)); q(x) > 0.
  double Chance(double pi, const DraftDistribution& q, base::TokenId token) const;
  // p becomes norm((pi p - q)+) where that has mass; returns the mass, in [0, 1]. A token x with
  // Chance(pi, q, x) < 1 has no mass in it.
  double Subtract(double pi, const DraftDistribution& q);

 private:
  // p(x) = value(x) * factor / total_. Values that are not kept are computed again from the logits:
  // ScaledExp(logit, reference).
  struct Chunk {
    float reference = 0;
    double power = 0;  // log2(factor)
    double factor = 1;
    double sum = 0;  // of the values, times factor
  };

  // Whether all logits are finite.
  bool ComputeProbs(absl::Span<const float> logits, bool keep);
  void Keep();
  // Chunk `chunk` of the open logits or of a row of draft_probs, padded with values of probability
  // 0.
  const float* LogitChunk(int chunk);
  const uint16_t* DraftChunk(const DraftDistribution& q, int chunk);
  const float* ValueChunk(int chunk);
  float Value(base::TokenId token) const;
  float DenseFactor(double pi, const DraftDistribution& q, const Chunk& chunk) const;
  double SubtractDense(double pi, const DraftDistribution& q);
  double SubtractSparse(double pi, const DraftDistribution& q);
  // Computes the sums of the chunks that have these tokens (ascending) again, from kept values.
  void Resum(absl::Span<const base::TokenId> tokens);

  RowScratch& scratch_;
  ExpScale scale_;
  absl::Span<const float> logits_;
  bool kept_ = false;
  std::vector<float> values_;  // [chunks][kRowChunk], if kept
  std::vector<Chunk> chunks_;
  double total_ = 0;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_CPU_ROW_DISTRIBUTION_H_
