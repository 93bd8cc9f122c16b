#ifndef SPECFABRIC_MODEL_CUDA_RANK_SUM_CUH_
#define SPECFABRIC_MODEL_CUDA_RANK_SUM_CUH_

namespace specfabric::model::cuda {

// The sum of read(r) over 0 <= r < ranks, of which there are at most kMost, in the order of
// ForRankPairs (model/parallel/rank_tree.h), with the parts in registers.
template <int kMost, typename Read>
__device__ auto RankSum(int ranks, const Read& read) {
  decltype(read(0)) parts[kMost];
#pragma unroll
  for (int r = 0; r < kMost; ++r) {
    if (r < ranks) parts[r] = read(r);
  }
#pragma unroll
  for (int distance = 1; distance < kMost; distance *= 2) {
#pragma unroll
    for (int left = 0; left + distance < kMost; left += 2 * distance) {
      if (left + distance < ranks) parts[left] += parts[left + distance];
    }
  }
  return parts[0];
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_RANK_SUM_CUH_
