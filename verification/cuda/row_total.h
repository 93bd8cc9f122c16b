#ifndef SPECFABRIC_VERIFICATION_CUDA_ROW_TOTAL_H_
#define SPECFABRIC_VERIFICATION_CUDA_ROW_TOTAL_H_

// The sum of a row of draft probabilities on the device. For .cu files alone.

#include <cstdint>

#include "base/bfloat16.h"
#include "base/cuda/reduce.h"
#include "sampling/draft_row.h"

namespace specfabric::verification::cuda {

constexpr int kTotalThreads = 512;

// Eight entries, the first in the lowest bits; 0 past the end of the row.
struct EightProbs {
  uint32_t pairs[4];
};
__device__ inline EightProbs ReadEight(const uint16_t* row, int32_t at, int32_t count) {
  if (reinterpret_cast<uintptr_t>(row) % sizeof(uint4) == 0 && at + 8 <= count) {
    const uint4 eight = *reinterpret_cast<const uint4*>(row + at);
    return {{eight.x, eight.y, eight.z, eight.w}};
  }
  EightProbs eight;
  SPECFABRIC_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = at + 2 * i < count ? row[at + 2 * i] : 0;
    const uint32_t high = at + 2 * i + 1 < count ? row[at + 2 * i + 1] : 0;
    eight.pairs[i] = low | high << 16;
  }
  return eight;
}

// The sum of [count] entries with the bits of sampling::TotalProb: entry i belongs to partial sum
// i % kProbSums, and each of these takes one entry after the other, a dependent addition each. So a
// thread adds up one of them from a tile in shared memory, while all of them read the next tile: a
// row takes count / kProbSums additions' time or that of its reading, whichever is longer. Each
// entry is read once and shown to see(bits). Called by the kTotalThreads threads of a block
// together, which all get the sum.
template <typename See>
__device__ double RowTotal(const uint16_t* row, int32_t count, See see) {
  using base::cuda::Thread;
  constexpr int kSums = sampling::kProbSums, kReads = 4, kAtOnce = 8;
  constexpr int kTile = kTotalThreads * kReads * 8;
  static_assert(kTile % (kSums * kAtOnce) == 0);
  __shared__ __align__(16) uint16_t tile[kTile];
  __shared__ double sums[kSums];
  EightProbs next[kReads];
  const auto read = [&](int32_t first) {
    SPECFABRIC_UNROLL
    for (int i = 0; i < kReads; ++i) {
      next[i] = ReadEight(row, first + (i * kTotalThreads + Thread()) * 8, count);
      SPECFABRIC_UNROLL
      for (const uint32_t pair : next[i].pairs) {
        see(static_cast<uint16_t>(pair));
        see(static_cast<uint16_t>(pair >> 16));
      }
    }
  };
  read(0);
  double sum = 0;
  for (int32_t first = 0; first < count; first += kTile) {
    __syncthreads();  // the previous tile may still be read
    SPECFABRIC_UNROLL
    for (int i = 0; i < kReads; ++i) {
      const auto& pairs = next[i].pairs;
      *reinterpret_cast<uint4*>(tile + (i * kTotalThreads + Thread()) * 8) = {pairs[0], pairs[1],
                                                                              pairs[2], pairs[3]};
    }
    __syncthreads();
    if (first + kTile < count) read(first + kTile);
    if (Thread() >= kSums) continue;
    const int size = min(kTile, count - first);
    for (int i = Thread(); i < size; i += kSums * kAtOnce) {
      float values[kAtOnce];  // zeros past the end change no sum
      SPECFABRIC_UNROLL
      for (int j = 0; j < kAtOnce; ++j) values[j] = base::WidenBFloat16(tile[i + j * kSums]);
      SPECFABRIC_UNROLL
      for (float value : values) sum += value;
    }
  }
  if (Thread() < kSums) sums[Thread()] = sum;
  __syncthreads();
  double total = 0;
  for (int i = 0; i < kSums; ++i) total += sums[i];
  return total;
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ROW_TOTAL_H_
