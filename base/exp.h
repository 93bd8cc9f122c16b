#ifndef SPECFABRIC_BASE_EXP_H_
#define SPECFABRIC_BASE_EXP_H_

// Weights of a softmax, exp((logit - reference) / T), with the same bits on every machine and GPU:
// no libm, but polynomials in +, * and std::fma; the one of float32 in a form that compilers
// vectorise.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/isa.h"

namespace specfabric::base {

// log2(e) / T in two parts: `low` is what float32 leaves off `high`.
struct ExpScale {
  float high = 0;
  float low = 0;
};

SPECFABRIC_HOST_DEVICE inline ExpScale ScaleFor(float temperature) {
  // Colder than this, every difference of two logits is beyond float32's exponents, and the
  // product with a difference of 0 must stay 0.
  constexpr float kColdest = 1e-30f;
  const double scale = 1.4426950408889634 / std::max(temperature, kColdest);
  const float high = static_cast<float>(scale);
  return {.high = high, .low = static_cast<float>(scale - high)};
}

// exp((logit - reference) / T) in float32: 1 where they are equal, 0 below 2^-125, and 0 for what
// is no number. Relative error: below 2^-23, beside what rounding logit - reference does. No
// number anyone can use above 2^125, or where the logit is +inf.
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE float ScaledExp(float logit, float reference,
                                                                ExpScale scale) {
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

// 2^x for x <= 0, relative error below 2^-50; 0 below 2^-1022, and for what is no number.
SPECFABRIC_HOST_DEVICE inline double Exp2(double x) {
  if (!(x >= -1022)) return 0;
  // 2^x = 2^n e^t with n whole and |t| <= ln(2) / 2, where the series' terms after these are below
  // 2^-52 of the sum.
  constexpr double kRound = 0x1.8p52;
  constexpr double kLn2 = 0.6931471805599453;
  constexpr int kTerms = 13;
  const double n = (x + kRound) - kRound;
  const double t = (x - n) * kLn2;
  double power = 1;
  for (int k = kTerms; k > 0; --k) power = 1 + t * (1.0 / k) * power;
  return power * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_EXP_H_
