#ifndef SPECFABRIC_BENCH_PLAIN_READ_H_
#define SPECFABRIC_BENCH_PLAIN_READ_H_

// Reading memory and doing nothing with it but what keeps the compiler from leaving it out: the
// bound that other loops over the same memory are held against.

#include <cstddef>

#include "absl/types/span.h"
#include "base/isa.h"

namespace specfabric::bench {

namespace plain_read_internal {

SPECFABRIC_ALWAYS_INLINE float ReadBody(const float* values, size_t n) {
  constexpr int kLanes = 128;
  float sums[kLanes] = {};
  for (size_t i = 0; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane];
  }
  float sum = 0;
  for (float lane : sums) sum += lane;
  return sum;
}
inline float ReadPortable(const float* values, size_t n) { return ReadBody(values, n); }
SPECFABRIC_TARGET_AVX2 inline float ReadAvx2(const float* values, size_t n) {
  return ReadBody(values, n);
}
SPECFABRIC_TARGET_AVX512 inline float ReadAvx512(const float* values, size_t n) {
  return ReadBody(values, n);
}

}  // namespace plain_read_internal

// A sum of the values, but for the last n modulo 128.
inline float PlainRead(base::Isa isa, absl::Span<const float> values) {
  switch (isa) {
    case base::Isa::kAvx512:
      return plain_read_internal::ReadAvx512(values.data(), values.size());
    case base::Isa::kAvx2:
      return plain_read_internal::ReadAvx2(values.data(), values.size());
    case base::Isa::kPortable:
      break;
  }
  return plain_read_internal::ReadPortable(values.data(), values.size());
}

}  // namespace specfabric::bench

#endif  // SPECFABRIC_BENCH_PLAIN_READ_H_
