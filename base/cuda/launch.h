#ifndef SPECFABRIC_BASE_CUDA_LAUNCH_H_
#define SPECFABRIC_BASE_CUDA_LAUNCH_H_

// For .cu files and other sources that call CUDA's runtime API.

#include <cuda_runtime_api.h>

#include <type_traits>

#include "base/cuda/error.h"
#include "base/cuda/stream.h"

namespace specfabric::base::cuda {

// Whether launches may overlap: from Hopper on. The GPUs of a process are of one kind.
inline bool LaunchesOverlap() {
  static const bool overlap = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  return overlap;
}

// What a launch needs beyond its grid.
struct LaunchOptions {
  size_t shared_bytes = 0;  // dynamic shared memory; beyond 48 KiB the kernel must allow it first
  // The kernel may begin before earlier ones have ended, and calls AwaitInputs (tensor_core.h).
  bool overlaps = false;
};

// Lets a kernel be launched on the current device with more dynamic shared memory than 48 KiB.
template <typename... Parameters>
absl::Status AllowShared(void (*kernel)(Parameters...), size_t bytes, const char* what) {
  return ToStatus(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      what);
}

// Enqueues a kernel. Internal: the launch failed, or an earlier one of this thread did.
template <typename... Parameters>
absl::Status Launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                    const LaunchOptions& options, Stream stream,
                    std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = options.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = options.overlaps && LaunchesOverlap() ? 1 : 0;
  return ToStatus(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

template <typename... Parameters>
absl::Status Launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                    Stream stream, std::type_identity_t<Parameters>... arguments) {
  return Launch(name, kernel, grid, block, LaunchOptions{}, stream, arguments...);
}

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_LAUNCH_H_
