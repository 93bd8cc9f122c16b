#ifndef SPECFABRIC_MODEL_BFLOAT16_H_
#define SPECFABRIC_MODEL_BFLOAT16_H_

// The two 16-bit floating-point formats of checkpoints, as bit patterns.

#include <bit>
#include <cstdint>

namespace specfabric::model {

inline float WidenBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To nearest, ties to even; a NaN stays one.
inline uint16_t RoundToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>((nan ? bits | 0x400000 : rounded) >> 16);
}

// IEEE 754 binary16. Multiplying by 2^112 re-biases the exponent, denormals included.
inline float WidenFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  const bool special = (bits & 0x7C00) == 0x7C00;  // infinity, NaN
  const float value = special ? std::bit_cast<float>(magnitude | 0x7F800000)
                              : std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_BFLOAT16_H_
