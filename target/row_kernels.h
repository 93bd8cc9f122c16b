#ifndef SPECFABRIC_TARGET_ROW_KERNELS_H_
#define SPECFABRIC_TARGET_ROW_KERNELS_H_

// The loops over a row of the vocabulary that verification is made of, a chunk at a time: a chunk
// stays in the first-level cache from one loop to the next. Every variant gives the same bits.

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/gumbel.h"
#include "base/isa.h"

namespace specfabric::target {

// Values a chunk. Every array below has as many; callers pad.
constexpr int kRowChunk = 1024;

// log2(e) / T in two parts: `low` is what float32 leaves off `high`.
struct ExpScale {
  float high = 0;
  float low = 0;
};
ExpScale ScaleFor(float temperature);

// exp((logit - reference) / T) in float32: 1 where they are equal, 0 below 2^-125, and 0 for what
// is no number. Relative error: below 2^-23, beside what rounding logit - reference does. No
// number anyone can use above 2^125, or where the logit is +inf.
SPECFABRIC_ALWAYS_INLINE float ExpWeight(float logit, float reference, ExpScale scale) {
  // 2^y = 2^n 2^f with n whole and |f| <= 1/2. Adding 1.5 * 2^23 rounds to n and leaves it in the
  // low bits. The polynomial (2^f - 1) / f of degree 5 was fitted to the least maximum relative
  // error of 2^f, which is 2^-25.9 with the coefficients rounded.
  constexpr float kRound = 0x1.8p23f;
  const float difference = logit - reference;
  const float y = difference * scale.high;
  const float shifted = y + kRound;
  const float f =
      std::fma(difference, scale.low, std::fma(difference, scale.high, kRound - shifted));
  float power = 0x1.41fbaep-13f;
  power = std::fma(power, f, 0x1.5f3e6ap-10f);
  power = std::fma(power, f, 0x1.3b2d4ep-7f);
  power = std::fma(power, f, 0x1.c6aee8p-5f);
  power = std::fma(power, f, 0x1.ebfbdcp-3f);
  power = std::fma(power, f, 0x1.62e430p-1f);
  power = std::fma(power, f, 1.0f);
  const uint32_t bits = std::bit_cast<uint32_t>(power) + (std::bit_cast<uint32_t>(shifted) << 23);
  const uint32_t representable = 0u - static_cast<uint32_t>(y >= -125.0f);
  return std::bit_cast<float>(bits & representable);
}

struct Weighed {
  double sum = 0;  // of the weights
  float max = 0;   // of the logits
};

// Sums are of float32 in groups of eight, of these in double, in an order that no variant changes.
struct RowKernels {
  // The largest; what is no number never is. -inf if nothing else is there.
  float (*max)(const float* logits);
  // weights[i] = ExpWeight(logits[i], reference, scale).
  Weighed (*weigh)(const float* logits, float reference, ExpScale scale, float* weights);
  double (*sum)(const float* values);
  // The sum of w log2(w) over the same weights, 0 log2(0) = 0.
  double (*entropy)(const float* logits, float reference, ExpScale scale, const float* weights);
  // left[i] = max(0, factor * values[i] - draft_scale * draft[i]), draft in bfloat16; returns their
  // sum. `left` may not overlap the others.
  double (*subtract)(const float* values, float factor, const uint16_t* draft, float draft_scale,
                     float* left);
};

// isa: one that base::Supported().
const RowKernels& KernelsFor(base::Isa isa);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_ROW_KERNELS_H_
