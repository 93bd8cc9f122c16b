#ifndef SPECFABRIC_BASE_CUDA_ERROR_H_
#define SPECFABRIC_BASE_CUDA_ERROR_H_

// Includes CUDA's runtime API, so only sources that call it include this.

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace specfabric::base::cuda {

// ResourceExhausted if the device has no memory left, else Internal. `what`: what was attempted.
inline absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto code = error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat("CUDA, ", what, ": ", cudaGetErrorString(error)));
}

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_ERROR_H_
