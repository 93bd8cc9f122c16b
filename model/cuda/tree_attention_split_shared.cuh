#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_SHARED_CUH_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_SHARED_CUH_

// The shared memory of a thread block of split-KV attention, and where rows lie in it.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/cuda/tree_attention_split_item.cuh"
#include "model/cuda/tree_attention_split_part.cuh"

namespace specfabric::model::cuda {

constexpr int kSplitThreads = kSplitWarps * base::cuda::kWarp;
constexpr int kWarpSlots = kLeafSlots / kSplitWarps;
static_assert(kSplitWarps == 4 && kWarpSlots == 16);
constexpr int kSlotLeaves = 4;  // whose slots are in shared memory at a time

// Keys, values and queries lie in shared memory in pieces of 16 bytes, of which a row has
// kHeadDim / 8. Where piece p of a row lies depends on the row, such that no two of the lanes that
// are served at once meet in a bank: eight lanes that read four pieces of each of two successive
// rows, or lanes that read 32 bytes of each of four rows, every second one.
__device__ inline int KeyPiece(int row, int piece) { return piece ^ (row & 1) << 2; }
__device__ inline int ValuePiece(int row, int piece) { return piece ^ (row >> 1 & 3) << 1; }

// Value j of two slots, of each of which a lane has two or four.
__device__ inline uint32_t PairOf(uint32_t a, uint32_t b, int j) {
  return j % 2 == 0 ? (a & 0xffffu) | b << 16 : a >> 16 | (b & 0xffff0000u);
}
__device__ inline uint32_t PairOf(uint2 a, uint2 b, int j) {
  return j < 2 ? PairOf(a.x, b.x, j) : PairOf(a.y, b.y, j);
}

// kTiles: sixteens of lines.
template <int kHeadDim, int kTiles>
struct SharedMemory {
  static constexpr int kPieces = kHeadDim / 8;
  // Of the keys, or the values, of a leaf. Two blocks of the largest kernel fit a processor.
  static constexpr int kBuffers = kHeadDim == 64 ? 4 : 3;

  uint4 ring[kBuffers][kLeafSlots * kPieces];
  uint4 queries[kTiles * kTileLines * kPieces];
  // Of each warp's slots, as operands of the lanes.
  uint4 weights[kTiles][kSplitWarps][base::cuda::kWarp];
  float4 highest[kTiles * kTileLines];  // of each warp
  float4 sums[kTiles * kTileLines];
  float totals[kTiles][2 * Part<kHeadDim>::kRun][kSplitThreads];  // a thread's own
  int32_t slots[kSlotLeaves][kLeafSlots];                         // of the cache; -1: none
  ItemView::Leaf leaves[kSlotLeaves];  // whose slots these are; for walks with tails
};

// Blocks that a processor of Hopper or Blackwell runs at the same time: as many as its shared
// memory has room for, with 1 KiB of the system's for each, but no more than have registers enough.
template <int kHeadDim, int kTiles>
constexpr int kBlocksAtOnce = std::min(
    kTiles == 4   ? 2
    : kTiles == 2 ? 3
                  : 4,
    static_cast<int>((size_t{228} << 10) / (sizeof(SharedMemory<kHeadDim, kTiles>) + 1024)));

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_SHARED_CUH_
