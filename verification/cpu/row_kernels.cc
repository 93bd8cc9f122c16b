#include "verification/cpu/row_kernels.h"

#include <algorithm>

#include "base/bfloat16.h"
#include "base/finite.h"
#include "sampling/gumbel.h"

namespace specfabric::verification {
namespace {

constexpr int kLanes = 16;

SPECFABRIC_ALWAYS_INLINE float MaxBody(const float* logits) {
  float best[kLanes];
  for (float& lane : best) lane = kExcludedLogit;
  for (int i = 0; i < kRowChunk; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
    }
  }
  return *std::max_element(best, best + kLanes);
}

// Eight values at a time as float32, these sums in double, always as the same tree.
SPECFABRIC_ALWAYS_INLINE double SumBody(const float* values) {
  constexpr int kSums = kRowChunk / 8;
  float sums[kSums];
  for (int i = 0; i < kSums; ++i) {
    const float* const v = values + i;
    sums[i] = ((v[0] + v[kSums]) + (v[2 * kSums] + v[3 * kSums])) +
              ((v[4 * kSums] + v[5 * kSums]) + (v[6 * kSums] + v[7 * kSums]));
  }
  double total[kSums / 2];
  for (int i = 0; i < kSums / 2; ++i) {
    total[i] = static_cast<double>(sums[i]) + static_cast<double>(sums[i + kSums / 2]);
  }
  for (int half = kSums / 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) total[i] += total[i + half];
  }
  return total[0];
}

SPECFABRIC_ALWAYS_INLINE ExpResult ExpBody(const float* __restrict logits, float reference,
                                           ExpScale scale, float* __restrict probs) {
  float best[kLanes];
  uint32_t largest[kLanes] = {};
  for (float& lane : best) lane = kExcludedLogit;
  for (int i = 0; i < kRowChunk; i += kLanes) {
    base::PrefetchAhead(logits + i, kRowChunk * sizeof(float));
    for (int lane = 0; lane < kLanes; ++lane) {
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
      largest[lane] = std::max(largest[lane], base::Magnitude(logits[i + lane]));
      probs[i + lane] = ScaledExp(logits[i + lane], reference, scale);
    }
  }
  return {.sum = SumBody(probs),
          .max = *std::max_element(best, best + kLanes),
          .finite = *std::max_element(largest, largest + kLanes) < base::kLeastNotFinite};
}

SPECFABRIC_ALWAYS_INLINE double EntropyBody(const float* __restrict logits, float reference,
                                            ExpScale scale, const float* __restrict probs) {
  float terms[kRowChunk];
  for (int i = 0; i < kRowChunk; ++i) {
    const float log2 = (logits[i] - reference) * scale.high;
    const uint32_t positive = 0u - static_cast<uint32_t>(probs[i] > 0.0f);
    terms[i] = probs[i] * sampling::Select(positive, log2, 0.0f);
  }
  return SumBody(terms);
}

SPECFABRIC_ALWAYS_INLINE double SubtractBody(const float* __restrict values, float factor,
                                             const uint16_t* __restrict draft, float draft_scale,
                                             float* __restrict left) {
  for (int i = 0; i < kRowChunk; i += 2 * kLanes) {
    base::PrefetchAhead(draft + i, kRowChunk * sizeof(uint16_t));
    for (int lane = i; lane < i + 2 * kLanes; ++lane) {
      const float difference =
          std::fma(factor, values[lane], -(draft_scale * base::WidenBFloat16(draft[lane])));
      left[lane] = difference > 0.0f ? difference : 0.0f;
    }
  }
  return SumBody(left);
}

// One set of functions for each instruction set.
#define SPECFABRIC_ROW_KERNELS(name, attribute)                                                \
  struct name {                                                                                \
    attribute static float Max(const float* logits) { return MaxBody(logits); }                \
    attribute static ExpResult ExpChunk(const float* logits, float reference, ExpScale scale,  \
                                        float* probs) {                                        \
      return ExpBody(logits, reference, scale, probs);                                         \
    }                                                                                          \
    attribute static double Sum(const float* values) { return SumBody(values); }               \
    attribute static double Entropy(const float* logits, float reference, ExpScale scale,      \
                                    const float* probs) {                                      \
      return EntropyBody(logits, reference, scale, probs);                                     \
    }                                                                                          \
    attribute static double Subtract(const float* values, float factor, const uint16_t* draft, \
                                     float draft_scale, float* left) {                         \
      return SubtractBody(values, factor, draft, draft_scale, left);                           \
    }                                                                                          \
    static constexpr RowKernels kAll = {Max, ExpChunk, Sum, Entropy, Subtract};                \
  };
SPECFABRIC_ROW_KERNELS(Portable, )
SPECFABRIC_ROW_KERNELS(Avx2, SPECFABRIC_TARGET_AVX2)
SPECFABRIC_ROW_KERNELS(Avx512, SPECFABRIC_TARGET_AVX512)
#undef SPECFABRIC_ROW_KERNELS

}  // namespace

const RowKernels& KernelsFor(base::Isa isa) {
  switch (isa) {
    case base::Isa::kAvx512:
      return Avx512::kAll;
    case base::Isa::kAvx2:
      return Avx2::kAll;
    case base::Isa::kPortable:
      break;
  }
  return Portable::kAll;
}

}  // namespace specfabric::verification
