#ifndef SPECFABRIC_SAMPLING_GUMBEL_H_
#define SPECFABRIC_SAMPLING_GUMBEL_H_

// Gumbel noise with the same bits on every machine:
//   E = -log1p(-(k + 1/2) 2^-32),   g = -log E,   k = one 32-bit Philox word,
// computed from the small end: where (k + 1/2) 2^-32 is near 0, E is near it and keeps a relative
// error of about 2^-23; where it is near 1, its distance from 1 is an exact integer. So g spans
// [-3.13, 22.88] without a gap or an infinity. No libm: the one logarithm below is a polynomial in
// +, * and std::fma, which IEEE 754 defines to the bit.

#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "base/isa.h"

namespace specfabric::sampling {

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], relative error below 2^-23. The polynomial
// (log(1 + f) - f) / f^2 of degree 8 was fitted to the least maximum relative error, 2^-27.5.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE float Log1pCore(float f) {
  float q = -0x1.383114p-4f;
  q = std::fma(q, f, 0x1.0848d0p-3f);
  q = std::fma(q, f, -0x1.0f3768p-3f);
  q = std::fma(q, f, 0x1.22718ap-3f);
  q = std::fma(q, f, -0x1.54276ap-3f);
  q = std::fma(q, f, 0x1.99a3f4p-3f);
  q = std::fma(q, f, -0x1.000426p-2f);
  q = std::fma(q, f, 0x1.555550p-2f);
  q = std::fma(q, f, -0x1.fffff8p-2f);
  return std::fma(f * f, q, f);
}

constexpr float kLn2 = 0x1.62e430p-1f;

// x = 2^exponent * (1 + fraction), with the fraction in the core's range. x: positive and normal.
struct SplitFloat {
  float exponent;
  float fraction;
};
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE SplitFloat Split(float x) {
  constexpr int32_t kSqrtHalf = 0x3f3504f3;
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - kSqrtHalf) >> 23;
  const float mantissa = std::bit_cast<float>(bits - exponent * (1 << 23));
  return {static_cast<float>(exponent), mantissa - 1.0f};
}

// Natural logarithm of a positive, normal x.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE float PositiveLog(float x) {
  const SplitFloat s = Split(x);
  return std::fma(s.exponent, kLn2, Log1pCore(s.fraction));
}

// `yes` where the mask is all ones, `no` where it is zero. A select without a branch: a conditional
// expression of float operations keeps the compiler from vectorising.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE float Select(uint32_t mask, float yes, float no) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(yes) & mask) |
                              (std::bit_cast<uint32_t>(no) & ~mask));
}

// E of one word, a standard exponential variate in [2^-33, 22.88].
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE float ExponentialFromWord(uint32_t word) {
  const uint32_t high = 0u - (word >> 31);
  // v = (m + 1/2) 2^-32 is the distance from the nearer end: E = -log(1 - v) or -log(v). 2 m + 1 is
  // rounded once, as the sum of two exact parts that convert from signed integers.
  const uint32_t m = word ^ high;
  const float v =
      std::fma(static_cast<float>(static_cast<int32_t>(m >> 12)), 0x1p-20f,
               static_cast<float>(static_cast<int32_t>(2 * (m & 0xfff) + 1)) * 0x1p-33f);
  // 1 - v = 2^0 (1 - v), or 2^-1 (1 + (1 - 2 v)) from v = 1 - sqrt(1/2) on. Both fractions are
  // exact.
  constexpr uint32_t kOneMinusSqrtHalf = 0x3e95f61a;
  const uint32_t tiny = 0u - static_cast<uint32_t>(std::bit_cast<uint32_t>(v) < kOneMinusSqrtHalf);
  const float low_exponent = Select(tiny, 0.0f, -1.0f);
  const float low_fraction = Select(tiny, -v, 1.0f - 2.0f * v);
  const SplitFloat split = Split(v);
  const float exponent = Select(high, split.exponent, low_exponent);
  const float fraction = Select(high, split.fraction, low_fraction);
  return std::fma(-exponent, kLn2, -Log1pCore(fraction));
}

SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE float GumbelFromWord(uint32_t word) {
  return -PositiveLog(ExponentialFromWord(word));
}

// Noise for vocabulary ids first .. first + out.size(), for the token at `position` of a sequence
// with this seed. An id's noise does not depend on `first`, out.size() or the instruction set.
// first >= 0.
void GumbelNoise(uint64_t seed, uint32_t position, int32_t first, absl::Span<float> out);

// The same by one given variant, which must be Supported(): for tests.
void GumbelNoise(base::Isa isa, uint64_t seed, uint32_t position, int32_t first,
                 absl::Span<float> out);

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_GUMBEL_H_
