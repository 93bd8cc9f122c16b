#ifndef SPECFABRIC_BASE_BFLOAT16_H_
#define SPECFABRIC_BASE_BFLOAT16_H_

// bfloat16, the upper half of a float32, as a bit pattern.

#include <bit>
#include <cstdint>

namespace specfabric::base {

constexpr float WidenBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To nearest, ties to even; a NaN stays one.
constexpr uint16_t RoundToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>((nan ? bits | 0x400000 : rounded) >> 16);
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_BFLOAT16_H_
