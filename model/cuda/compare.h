#ifndef SPECFABRIC_MODEL_CUDA_COMPARE_H_
#define SPECFABRIC_MODEL_CUDA_COMPARE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"

namespace specfabric::model::cuda {

// Adds to *differing, on the device, how many of two arrays' words differ. Enqueues; for its status
// see base/cuda/launch.h.
absl::Status EnqueueCountDifferent(const uint32_t* a, const uint32_t* b, int64_t count,
                                   uint32_t* differing, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_COMPARE_H_
