#ifndef SPECFABRIC_VERIFICATION_ROW_PROBS_H_
#define SPECFABRIC_VERIFICATION_ROW_PROBS_H_

// How a target's distribution over a whole vocabulary is kept while it is verified, p(x) as a
// float32 prob: what CPUs (verification/cpu/row_distribution.h) and GPUs
// (verification/cuda/row_distribution.h) must do alike for the same bits.
//
// A row is cut into chunks. A chunk's weights are exp((logit - reference) / T) with a reference of
// its own, so that one pass over the row is enough, and count times its factor,
// exp((reference - largest logit of the row) / T).

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/exp.h"
#include "base/isa.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification {

// Weights a chunk. Their sum is of float32 in groups of eight, of these in double, always as the
// same tree: x[i] + x[i + 128] + ... (as pairs of pairs), then halves onto halves.
constexpr int kRowChunk = 1024;

// A residual below this is what rounding leaves of none. It also bounds the factors of the next.
constexpr double kNoMass = 1e-30;

// `before`: the largest logit of the chunks before, of the first chunk its own; `through`: of these
// and the chunk itself. The former is reference enough, as long as the latter does not overflow.
SPECFABRIC_HOST_DEVICE inline float ChunkReference(float before, float through,
                                                   base::ExpScale scale) {
  constexpr float kHighestPower = 60;  // of two, that a prob may have
  return (through - before) * scale.high <= kHighestPower ? before : through;
}

// log2 of a chunk's factor; -inf where the chunk has nothing. max: of the row, finite.
SPECFABRIC_HOST_DEVICE inline double ChunkPower(float reference, float max, base::ExpScale scale) {
  return (static_cast<double>(reference) - max) * (static_cast<double>(scale.high) + scale.low);
}

// A power of two, in float32's normal range, that brings draft weights of this sum near 1. total:
// positive, finite.
SPECFABRIC_HOST_DEVICE inline float DraftScale(double total) {
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(total) >> 52) - 1023;
  const int within = std::clamp(exponent, -126, 126);
  return std::bit_cast<float>(static_cast<uint32_t>(127 - within) << 23);
}

// The chance that a node keeps after a child below it was rejected: S / (S + 1 - pi), S the mass of
// the residual. 0 / 0 comes of p = q with pi = 1, where rejection has no probability.
SPECFABRIC_HOST_DEVICE inline double KeptChance(double pi, double residual_mass) {
  return pi == 1 ? 1 : residual_mass / (residual_mass + 1 - pi);
}

// 1 / perplexity = exp(-H(p)), H the entropy in nats. total: of all weights; power_sum: of all
// w log2(w).
SPECFABRIC_HOST_DEVICE inline double InversePerplexity(double total, double power_sum) {
  return base::Exp2(power_sum / total) / total;
}

// What a token's probability must exceed under kTypical.
SPECFABRIC_HOST_DEVICE inline double TypicalBound(const TypicalOptions& options,
                                                  double inverse_perplexity) {
  return std::min(options.epsilon, options.delta * inverse_perplexity);
}

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_ROW_PROBS_H_
