#include "model/cuda/compare.h"

#include <algorithm>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"

namespace specfabric::model::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    CountDifferent(const uint32_t* a, const uint32_t* b, int64_t count, uint32_t* differing) {
  uint32_t mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + base::cuda::Thread(); i < count;
       i += int64_t{gridDim.x} * kThreads) {
    mine += a[i] != b[i] ? 1 : 0;
  }
  if (mine > 0) atomicAdd(differing, mine);
}

}  // namespace

absl::Status EnqueueCountDifferent(const uint32_t* a, const uint32_t* b, int64_t count,
                                   uint32_t* differing, base::cuda::Stream stream) {
  const int64_t blocks = std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks);
  return base::cuda::Launch("a comparison of bits", CountDifferent,
                            dim3(static_cast<unsigned>(blocks)), dim3(kThreads), stream, a, b,
                            count, differing);
}

}  // namespace specfabric::model::cuda
