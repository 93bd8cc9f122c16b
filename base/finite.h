#ifndef SPECFABRIC_BASE_FINITE_H_
#define SPECFABRIC_BASE_FINITE_H_

// Whether all numbers of a row are finite, found in the pass that reads them for something else:
// the largest Magnitude() tells, and integer maxima cost vectorised loops next to nothing.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/types/span.h"
#include "base/isa.h"

namespace specfabric::base {

// Infinities and NaNs have the largest magnitudes; the sign does not count.
constexpr uint32_t kLeastNotFinite = 0xFF000000u;
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE uint32_t Magnitude(float value) {
  return std::bit_cast<uint32_t>(value) << 1;
}
SPECFABRIC_HOST_DEVICE SPECFABRIC_ALWAYS_INLINE bool IsFinite(float value) {
  return Magnitude(value) < kLeastNotFinite;
}

inline bool AllFinite(absl::Span<const float> values) {
  uint32_t largest = 0;
  for (float value : values) largest = std::max(largest, Magnitude(value));
  return largest < kLeastNotFinite;
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_FINITE_H_
