#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_TOTALS_CUH_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_TOTALS_CUH_

// What a thread of split-KV attention keeps of the chunks that have ended, until its walk has.

#include <cstdint>

#include "model/cuda/tree_attention_split_part.cuh"
#include "model/cuda/tree_attention_split_shared.cuh"

namespace specfabric::model::cuda {

// In shared memory, but for the highest scores and the sums. t: which sixteen lines.
template <int kHeadDim, int kTiles>
class ChunkTotals {
 public:
  using Lane = Part<kHeadDim>;
  __device__ explicit ChunkTotals(SharedMemory<kHeadDim, kTiles>* shared) : shared_(*shared) {}

  // A chunk folded with those before it, if there are any.
  __device__ Lane With(int t, const Lane& chunk) const {
    if (!any_) return chunk;
    Lane whole;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      whole.highest[half] = highest_[t][half];
      whole.sum[half] = sum_[t][half];
#pragma unroll
      for (int i = 0; i < whole.kRun; ++i) {
        whole.At(half, i) = shared_.totals[t][half * whole.kRun + i][base::cuda::Thread()];
      }
    }
    Fold(chunk, &whole);
    return whole;
  }

  // The chunk has ended: it joins those before it, and becomes empty.
  __device__ void End(int t, Lane* chunk) {
    const Lane whole = With(t, *chunk);
#pragma unroll
    for (int half = 0; half < 2; ++half) Keep(t, half, whole);
    *chunk = {};
  }
  // The same of some lines; where none has ended before, those of the others are nothing.
  __device__ void EndOf(int t, Lines lines, Lane* chunk) {
    Lane ended;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!lines.of[half]) continue;
      ended.highest[half] = chunk->highest[half];
      ended.sum[half] = chunk->sum[half];
      chunk->highest[half] = -INFINITY;
      chunk->sum[half] = 0;
#pragma unroll
      for (int i = 0; i < ended.kRun; ++i) {
        ended.At(half, i) = chunk->At(half, i);
        chunk->At(half, i) = 0;
      }
    }
    const Lane whole = With(t, ended);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lines.of[half] || !any_) Keep(t, half, whole);
    }
  }
  // Called once a chunk has ended for all tiles.
  __device__ void HaveAny() { any_ = true; }

 private:
  __device__ void Keep(int t, int half, const Lane& whole) {
    highest_[t][half] = whole.highest[half];
    sum_[t][half] = whole.sum[half];
#pragma unroll
    for (int i = 0; i < whole.kRun; ++i) {
      shared_.totals[t][half * whole.kRun + i][base::cuda::Thread()] = whole.At(half, i);
    }
  }

  SharedMemory<kHeadDim, kTiles>& shared_;
  bool any_ = false;
  float highest_[kTiles][2], sum_[kTiles][2];
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_TOTALS_CUH_
