#ifndef SPECFABRIC_TESTS_CUDA_EMULATOR_STREAM_H_
#define SPECFABRIC_TESTS_CUDA_EMULATOR_STREAM_H_

// What is enqueued runs at once, or, while the calling thread captures a graph, when that is
// launched. A thread has one stream.

#include <cuda_runtime_api.h>

#include <functional>

namespace specfabric::emulator {

// Work owns all that it needs, but for the device's memory.
cudaError_t Enqueue(std::function<cudaError_t()> work);

// For what a stream that is being captured does not allow: success where none is; else the error,
// and nothing comes of the capture.
cudaError_t RefuseInCapture();

}  // namespace specfabric::emulator

#endif  // SPECFABRIC_TESTS_CUDA_EMULATOR_STREAM_H_
