#ifndef SPECFABRIC_MODEL_CUDA_ELEMENT_H_
#define SPECFABRIC_MODEL_CUDA_ELEMENT_H_

// Elements of weights, activations and caches on the device: float, or the bits of a bfloat16. For
// .cu files alone.

#include <cstdint>

#include "base/bfloat16.h"
#include "model/checkpoint/config.h"

namespace specfabric::model::cuda {

using BFloat16Bits = uint16_t;

__device__ inline float Widen(float value) { return value; }
__device__ inline float Widen(BFloat16Bits bits) { return base::WidenBFloat16(bits); }

template <typename Element>
__device__ Element Round(float value);
template <>
__device__ inline float Round<float>(float value) {
  return value;
}
template <>
__device__ inline BFloat16Bits Round<BFloat16Bits>(float value) {
  return base::RoundToBFloat16(value);
}

// Calls `run` with a value of the element type of `type`.
template <typename Function>
auto ForElement(DataType type, const Function& run) {
  return type == DataType::kFloat32 ? run(float{}) : run(BFloat16Bits{});
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_ELEMENT_H_
