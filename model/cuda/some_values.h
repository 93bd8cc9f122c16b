#ifndef SPECFABRIC_MODEL_CUDA_SOME_VALUES_H_
#define SPECFABRIC_MODEL_CUDA_SOME_VALUES_H_

// What kernels are checked and tried with at the start.

#include <cstdint>

#include "base/bfloat16.h"
#include "base/hash.h"

namespace specfabric::model::cuda {

// A bfloat16 in [-scale, scale] that looks random and is always the same for an `i`.
inline uint16_t SomeValue(uint64_t i, float scale) {
  const auto drawn = static_cast<int32_t>(base::Mix64(i) >> 40);  // 24 bits
  return base::RoundToBFloat16((static_cast<float>(drawn) * 0x1p-23f - 1) * scale);
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_SOME_VALUES_H_
