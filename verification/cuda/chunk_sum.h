#ifndef SPECFABRIC_VERIFICATION_CUDA_CHUNK_SUM_H_
#define SPECFABRIC_VERIFICATION_CUDA_CHUNK_SUM_H_

// A chunk of a row in the registers of a warp. For .cu files alone.

#include <cmath>
#include <cstdint>

#include "base/cuda/reduce.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {

constexpr int kFour = 4;                                 // values that are read or written as one
constexpr int kChunkSums = verification::kRowChunk / 8;  // of eight values each
constexpr int kChunkGroups = verification::kRowChunk / kChunkSums;
static_assert(kChunkSums == kFour * base::cuda::kWarp);

__device__ inline int Lane() { return base::cuda::Thread() % base::cuda::kWarp; }
// The place within the chunk of the calling lane's four values of a group.
__device__ inline int PlaceInChunk(int group) { return group * kChunkSums + kFour * Lane(); }

// The values of a chunk that one lane of a warp has: of[group][i] is number PlaceInChunk(group) +
// i.
struct ChunkPart {
  float of[kChunkGroups][kFour];
};

// For rows of any type: whether groups of four values of this size may be read as one.
__device__ inline bool AlignedFours(const void* values, size_t size) {
  return reinterpret_cast<uintptr_t>(values) % (kFour * size) == 0;
}

// Values from `chunk` on, of which there are `size`, `beyond` past these. All loads are under way
// before the first has arrived.
__device__ inline ChunkPart ReadChunk(const float* chunk, int32_t size, float beyond) {
  const bool aligned = AlignedFours(chunk, sizeof(float));
  ChunkPart part;
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    const int at = PlaceInChunk(group);
    if (aligned && at + kFour <= size) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(chunk + at));
      part.of[group][0] = four.x;
      part.of[group][1] = four.y;
      part.of[group][2] = four.z;
      part.of[group][3] = four.w;
    } else {
      SPECFABRIC_UNROLL
      for (int i = 0; i < kFour; ++i) part.of[group][i] = at + i < size ? chunk[at + i] : beyond;
    }
  }
  return part;
}

// The sum of a chunk with the bits that CPUs compute (verification/row_probs.h): in float32 over
// the groups, then in double, the upper half of the sums onto the lower, repeatedly. The halves are
// told apart by the lane at first, and from the first two exchanges on each lane follows fewer
// sums. Called by all lanes of a warp together; every lane gets the sum.
__device__ inline double ChunkSum(const ChunkPart& part) {
  static_assert(kChunkGroups == 8 && kFour == 4);
  double sums[kFour];
  SPECFABRIC_UNROLL
  for (int i = 0; i < kFour; ++i) {
    const auto v = [&](int group) { return part.of[group][i]; };
    sums[i] =
        static_cast<double>(((v(0) + v(1)) + (v(2) + v(3))) + ((v(4) + v(5)) + (v(6) + v(7))));
  }
  const auto from = [](double value, int distance) {
    return __shfl_xor_sync(base::cuda::kAllLanes, value, distance);
  };
  const bool upper = (Lane() & 16) != 0, odd = (Lane() & 8) != 0;
  // Sums 0 and 1 stay in the lower lanes, 2 and 3 in the upper.
  const double first = (upper ? sums[2] : sums[0]) + from(upper ? sums[0] : sums[2], 16);
  const double second = (upper ? sums[3] : sums[1]) + from(upper ? sums[1] : sums[3], 16);
  double sum = (odd ? second : first) + from(odd ? first : second, 8);
  for (int distance = 4; distance > 0; distance /= 2) sum += from(sum, distance);
  sum += from(sum, 16);
  return sum + from(sum, 8);
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_CHUNK_SUM_H_
