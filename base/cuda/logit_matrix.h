#ifndef SPECFABRIC_BASE_CUDA_LOGIT_MATRIX_H_
#define SPECFABRIC_BASE_CUDA_LOGIT_MATRIX_H_

#include <cstdint>

#include "base/data_type.h"

namespace specfabric::base::cuda {

// Logits in device memory: [rows][stride] values. The first `size` values of a row are the logits
// of token ids first, first + 1, ...
struct LogitMatrix {
  const void* logits = nullptr;
  DataType type = DataType::kFloat32;
  int64_t stride = 0;  // values from one row to the next
  int32_t first = 0;
  int32_t size = 0;  // at least 1
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_LOGIT_MATRIX_H_
