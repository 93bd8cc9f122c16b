#ifndef SPECFABRIC_VERIFICATION_CUDA_ROUND_ROWS_H_
#define SPECFABRIC_VERIFICATION_CUDA_ROUND_ROWS_H_

// The logits of each node of a batch of trees, and the chunks of them that a warp takes. For .cu
// files alone.

#include <algorithm>

#include "base/cuda/reduce.h"
#include "verification/cuda/chunk_sum.h"
#include "verification/cuda/row_distribution.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {

// The sequence whose tree has node `node` of the batch. Called by all lanes of a warp together.
__device__ inline int32_t SequenceOf(const TreeBatch& trees, int32_t node) {
  int32_t low = 0, high = trees.sequences - 1;
  while (high - low >= base::cuda::kWarp) {
    const int32_t middle = (low + high + 1) / 2;
    if (trees.begin[middle] <= node) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int32_t mine = low + Lane();
  const bool begins = mine <= high && trees.begin[mine] <= node;
  return low + __popc(__ballot_sync(base::cuda::kAllLanes, begins)) - 1;
}

struct RoundRow {
  const TreeRound* round = nullptr;
  const float* logits = nullptr;  // [vocabulary]
};
// Called by all lanes of a warp together.
__device__ inline RoundRow RowOf(const RoundBatch& batch, int32_t node) {
  const int32_t sequence = SequenceOf(batch.trees, node);
  const TreeRound* const round = batch.rounds + sequence;
  const int64_t row = round->first_logit + (node - batch.trees.begin[sequence]);
  return {round, batch.logits + row * batch.stride};
}

inline int32_t ChunksOf(int32_t vocabulary) {
  return (vocabulary + verification::kRowChunk - 1) / verification::kRowChunk;
}

// Grid: [parts of a row][nodes], one warp for each chunk of each row; of few rows one warp a block,
// so that they occupy more processors.
constexpr int kChunkWarps = 8;  // in a block, at most
constexpr int kChunkThreads = kChunkWarps * base::cuda::kWarp;
struct ChunkGrid {
  dim3 grid, block;
};
inline ChunkGrid GridOfChunks(int32_t nodes, int32_t chunks) {
  constexpr int64_t kBlocks = 512;
  const int64_t all = int64_t{nodes} * chunks;
  const int warps =
      static_cast<int>(std::clamp<int64_t>(all / kBlocks, 1, std::min(chunks, kChunkWarps)));
  return {dim3((chunks + warps - 1) / warps, nodes), dim3(warps * base::cuda::kWarp)};
}
__device__ inline int ChunkOfWarp() {
  return (static_cast<int>(blockIdx.x) * base::cuda::Threads() + base::cuda::Thread()) /
         base::cuda::kWarp;
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ROUND_ROWS_H_
