#ifndef SPECFABRIC_BASE_CUDA_ERROR_H_
#define SPECFABRIC_BASE_CUDA_ERROR_H_

// Includes CUDA's run-time API: for the files of this folder.

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace specfabric::base::cuda {

// ResourceExhausted where the device's memory is, else Internal; `what` was tried.
inline absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto code = error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat("CUDA, ", what, ": ", cudaGetErrorString(error)));
}

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_ERROR_H_
