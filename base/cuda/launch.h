#ifndef SPECFABRIC_BASE_CUDA_LAUNCH_H_
#define SPECFABRIC_BASE_CUDA_LAUNCH_H_

// For .cu files and other sources that call CUDA's runtime API.

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/cuda/error.h"
#include "base/cuda/stream.h"

namespace specfabric::base::cuda {

// Enqueues a kernel. Internal: the launch failed, or an earlier one of this thread did.
template <typename... Parameters>
absl::Status Launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                    Stream stream, std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return ToStatus(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_LAUNCH_H_
