#ifndef SPECFABRIC_VERIFICATION_CUDA_CHUNK_SUM_H_
#define SPECFABRIC_VERIFICATION_CUDA_CHUNK_SUM_H_

// For .cu files alone.

#include "base/cuda/reduce.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {

// The sum of value_at(i) over the indices i of a chunk, with the bits that CPUs compute
// (verification/row_probs.h). Called by all lanes of a warp together, which share the calls of
// value_at (neighbouring lanes take neighbouring indices); every lane gets the sum.
template <typename ValueAt>
__device__ double ChunkSum(ValueAt value_at) {
  constexpr int kSums = verification::kRowChunk / 8;  // of eight values each
  constexpr int kOfLane = kSums / base::cuda::kWarp;
  const int lane = base::cuda::Thread() % base::cuda::kWarp;
  double sums[kOfLane];
  for (int i = 0; i < kOfLane; ++i) {
    float v[8];
    for (int j = 0; j < 8; ++j) v[j] = value_at(j * kSums + i * base::cuda::kWarp + lane);
    sums[i] =
        static_cast<double>(((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])));
  }
  static_assert(kOfLane == 4);
  double total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  for (int half = base::cuda::kWarp / 2; half > 0; half /= 2) {
    total += __shfl_down_sync(base::cuda::kAllLanes, total, half);
  }
  return __shfl_sync(base::cuda::kAllLanes, total, 0);
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_CHUNK_SUM_H_
