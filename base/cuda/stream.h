#ifndef SPECFABRIC_BASE_CUDA_STREAM_H_
#define SPECFABRIC_BASE_CUDA_STREAM_H_

// Named without CUDA's headers, so that hosts' code may call the kernels. What is enqueued on one
// stream runs in that order; nothing here waits for the device.

struct CUstream_st;

namespace specfabric::base::cuda {

using Stream = CUstream_st*;  // cudaStream_t

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_STREAM_H_
