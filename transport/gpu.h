#ifndef SPECFABRIC_TRANSPORT_GPU_H_
#define SPECFABRIC_TRANSPORT_GPU_H_

// GPUs, as the transport needs them: the context in which UCX allocates and copies, and whether
// RDMA devices reach GPU memory. NVIDIA's driver library is loaded at its first use, so that hosts
// without a GPU do not need it. For transport/ and its bench.

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace specfabric::transport {

// Makes the GPU's primary context current on the calling thread: UCX uses the current one. It is
// kept to the end of the process. FailedPrecondition, in one line: there is no driver, or no such
// GPU. `library` is for tests.
absl::Status UseGpu(int ordinal, const char* library = "libcuda.so.1");

// Copies host memory to GPU memory, in the context of the calling thread, and waits for it.
// Internal: the driver's error.
absl::Status CopyToGpu(const void* host, size_t bytes, void* gpu,
                       const char* library = "libcuda.so.1");
// The other way.
absl::Status CopyFromGpu(const void* gpu, size_t bytes, void* host,
                         const char* library = "libcuda.so.1");

// How an RDMA device of this machine reaches GPU memory.
struct GpuDirect {
  bool peermem = false;  // the kernel module nvidia-peermem is there
  // The driver can export memory as dma-bufs: its open kernel modules, on Linux 5.12 or later
  // (NVIDIA, "Developing a Linux Kernel Module using GPUDirect RDMA").
  bool dma_buf = false;
  bool found() const { return peermem || dma_buf; }
  // "nvidia-peermem", "dma-buf", "nvidia-peermem and dma-buf", or why there is neither.
  std::string description;
};
// Reads /proc and /sys below `root`.
GpuDirect FindGpuDirect(const std::string& root = "");

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_GPU_H_
