#ifndef SPECFABRIC_MODEL_CHECKPOINT_FLOAT16_H_
#define SPECFABRIC_MODEL_CHECKPOINT_FLOAT16_H_

// The two 16-bit floating-point formats of checkpoints, as bit patterns.

#include <bit>
#include <cstdint>

#include "base/bfloat16.h"

namespace specfabric::model {

using base::RoundToBFloat16;
using base::WidenBFloat16;

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

#endif  // SPECFABRIC_MODEL_CHECKPOINT_FLOAT16_H_
