#ifndef SPECFABRIC_VERIFICATION_CUDA_ROW_JOIN_H_
#define SPECFABRIC_VERIFICATION_CUDA_ROW_JOIN_H_

// What the thread blocks that share a row tell each other. A kernel finds it all zeros and leaves
// it so, which spares a launch that would begin it.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"

namespace specfabric::verification::cuda {

struct RowJoin {
  unsigned long long best = 0;  // the largest PackedChoice of the blocks that are done
  unsigned arrived = 0;         // blocks that are done (base::cuda::LastToArrive)
  unsigned unused = 0;
};

// What the kernels of this folder need for so many rows, whatever they do with them: zeros, which
// no kernel of another stream uses.
size_t RowJoinBytes(int32_t rows, int32_t vocabulary);
// Grows `joins` to as much, and enqueues that it becomes zeros. No enqueued work may still use it.
absl::Status ReserveRowJoins(const base::cuda::Device& device, int32_t rows, int32_t vocabulary,
                             base::cuda::DeviceBuffer* joins);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ROW_JOIN_H_
