#ifndef SPECFABRIC_VERIFICATION_CPU_ROW_DISTRIBUTION_H_
#define SPECFABRIC_VERIFICATION_CPU_ROW_DISTRIBUTION_H_

// The target's distribution at one node, p = softmax(logit / T) over the tokens that the filters
// keep, and what rejected siblings leave of it: sampling/distribution.h in float32, over a
// vocabulary of real size. p(x) is kept as a prob; sums are double. One thread at a time.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/isa.h"
#include "base/types.h"
#include "verification/cpu/row_kernels.h"

namespace specfabric::verification {

// What the draft drew a sibling from: q(x) = prob(x) / total. Its sender may still write to the
// draft_probs and ids: then some tokens are accepted or rejected wrongly, all of this sequence, and
// nothing else happens.
struct DraftDistribution {
  absl::Span<const uint16_t> draft_probs;    // bfloat16; finite, not negative
  absl::Span<const base::TokenId> ids = {};  // of these tokens, ascending; empty: of all
  std::vector<base::TokenId> taken = {};     // tokens that count as of probability zero, each once
  double total = 0;                          // of all draft_probs but theirs

  bool whole() const { return ids.empty(); }
  double UnnormalizedProb(base::TokenId token) const;
};

// Memory that the distributions of one thread share.
struct RowScratch {
  RowScratch(int32_t vocabulary, base::Isa isa);

  const int32_t vocabulary;
  const int32_t chunks;
  const RowKernels& kernels;
  std::vector<float> spare;        // a row of chunks, where the next residual is made
  std::vector<double> spare_sums;  // [chunks]
  std::vector<float> filtered;     // [vocabulary], logits after the filters
  std::array<float, kRowChunk> probs;
  std::array<float, kRowChunk> logits_tail;
  std::array<uint16_t, kRowChunk> draft_tail;
};

class RowDistribution {
 public:
  explicit RowDistribution(RowScratch* scratch) : scratch_(*scratch), chunks_(scratch->chunks) {}

  // p of these logits, [vocabulary], for T > 0. False: they are not all finite, and there is no p.
  // One pass over the row. With `keep` the distribution no longer needs the logits; otherwise they
  // must stay until the first Subtract, and no other distribution of the scratch may be opened
  // before.
  bool Open(absl::Span<const float> logits, const base::SamplingParams& sampling, bool keep);

  double Probability(base::TokenId token) const;
  // Before any Subtract, of a distribution opened without `keep`.
  double InversePerplexity();
  // The first token, in order of ids, at which the running sum of p exceeds `uniform`, in (0, 1).
  base::TokenId Sample(double uniform);

  // min(1, pi p(x) / q(x)); q(x) > 0.
  double Chance(double pi, const DraftDistribution& q, base::TokenId token) const;
  // p becomes norm((pi p - q)+) where that has mass; returns the mass, in [0, 1]. Where
  // Chance(pi, q, x) was below 1, x has no mass any more.
  double Subtract(double pi, const DraftDistribution& q);

 private:
  // p(x) = value(x) * factor / total_. Where the values are not kept they are made of the logits
  // anew: ScaledExp(logit, reference).
  struct Chunk {
    float reference = 0;
    double power = 0;  // log2(factor)
    double factor = 1;
    double sum = 0;  // of the values, times factor
  };

  // Whether all logits are finite.
  bool ComputeProbs(absl::Span<const float> logits, bool keep);
  void Keep();
  // Chunk `chunk` of the open logits or of a row of draft_probs, padded with what weighs nothing.
  const float* LogitChunk(int chunk);
  const uint16_t* DraftChunk(const DraftDistribution& q, int chunk);
  const float* ValueChunk(int chunk);
  float Value(base::TokenId token) const;
  float DenseFactor(double pi, const DraftDistribution& q, const Chunk& chunk) const;
  double SubtractDense(double pi, const DraftDistribution& q);
  double SubtractSparse(double pi, const DraftDistribution& q);
  // Adds up anew the chunks that hold these tokens, ascending, of kept values.
  void Resum(absl::Span<const base::TokenId> tokens);

  RowScratch& scratch_;
  ExpScale scale_;
  absl::Span<const float> logits_;
  bool kept_ = false;
  std::vector<float> values_;  // a row of chunks, where kept
  std::vector<Chunk> chunks_;
  double total_ = 0;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_CPU_ROW_DISTRIBUTION_H_
