#ifndef SPECFABRIC_VERIFICATION_ROW_PROBS_H_
#define SPECFABRIC_VERIFICATION_ROW_PROBS_H_

// How the target's distribution over the whole vocabulary is represented during verification, as
// unnormalised float32 probabilities. CPUs (verification/cpu/row_distribution.h) and GPUs
// (verification/cuda/row_distribution.h) compute the same bits, with the functions below.
//
// A row is cut into chunks. The values of a chunk are exp((logit - reference) / T), with a
// reference of its own so that one pass over the row is enough. p(x) is proportional to value(x)
// times the chunk's factor, exp((reference - largest logit of the row) / T).

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/exp.h"
#include "base/isa.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification {

// Values in a chunk. They are summed in float32 in groups of eight, then in double, always by the
// same tree: x[i] + x[i + 128] + ... (in pairs of pairs), then the second half onto the first,
// repeatedly.
constexpr int kRowChunk = 1024;

// A residual mass below this is a rounding error of 0. It also bounds the factors of the next
// residual.
constexpr double kNoMass = 1e-30;

// The reference of a chunk. `before`: the largest logit of the previous chunks (of the first chunk:
// its own); `through`: the largest of these and of the chunk itself. It is `before` as long as the
// chunk's values do not overflow.
SPECFABRIC_HOST_DEVICE inline float ChunkReference(float before, float through,
                                                   base::ExpScale scale) {
  constexpr float kHighestPower = 60;  // log2 of the largest value allowed
  return (through - before) * scale.high <= kHighestPower ? before : through;
}

// log2 of a chunk's factor; -inf for a chunk without probability. max: the largest logit of the
// row, finite.
SPECFABRIC_HOST_DEVICE inline double ChunkPower(float reference, float max, base::ExpScale scale) {
  return (static_cast<double>(reference) - max) * (static_cast<double>(scale.high) + scale.low);
}

// A power of two, in float32's normal range, that scales draft probabilities with this sum to a sum
// near 1. total: positive, finite.
SPECFABRIC_HOST_DEVICE inline float DraftScale(double total) {
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(total) >> 52) - 1023;
  const int within = std::clamp(exponent, -126, 126);
  return std::bit_cast<float>(static_cast<uint32_t>(127 - within) << 23);
}

// The acceptance probability that a node keeps after a child was rejected: S / (S + 1 - pi), S the
// mass of the residual. 0 / 0 occurs for p = q with pi = 1, where a rejection has probability 0.
SPECFABRIC_HOST_DEVICE inline double KeptChance(double pi, double residual_mass) {
  return pi == 1 ? 1 : residual_mass / (residual_mass + 1 - pi);
}

// 1 / perplexity = exp(-H(p)), H the entropy in nats. total: the sum of the unnormalised
// probabilities w; power_sum: the sum of w log2(w).
SPECFABRIC_HOST_DEVICE inline double InversePerplexity(double total, double power_sum) {
  return base::Exp2(power_sum / total) / total;
}

// kTypical accepts a token whose probability exceeds this.
SPECFABRIC_HOST_DEVICE inline double TypicalBound(const TypicalOptions& options,
                                                  double inverse_perplexity) {
  return std::min(options.epsilon, options.delta * inverse_perplexity);
}

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_ROW_PROBS_H_
