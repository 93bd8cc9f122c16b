#ifndef SPECFABRIC_BASE_CUDA_TENSOR_TYPE_H_
#define SPECFABRIC_BASE_CUDA_TENSOR_TYPE_H_

#include <cstdint>

namespace specfabric::base::cuda {

// The type of a tensor core's 16-bit operands.
enum class TensorType : uint8_t { kFloat16, kBFloat16 };

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_TENSOR_TYPE_H_
