#ifndef SPECFABRIC_BASE_CUDA_STREAM_H_
#define SPECFABRIC_BASE_CUDA_STREAM_H_

// CUDA's stream without CUDA's headers, so that host code can call the functions that enqueue
// kernels. Work on one stream runs in the order in which it was enqueued.

struct CUstream_st;

namespace specfabric::base::cuda {

using Stream = CUstream_st*;  // cudaStream_t

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_STREAM_H_
