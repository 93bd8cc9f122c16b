#ifndef SPECFABRIC_MODEL_PARALLEL_RANK_TREE_H_
#define SPECFABRIC_MODEL_PARALLEL_RANK_TREE_H_

// The order in which the parts of ranks are added everywhere, on CPUs and in kernels: a binary tree
// over the ranks in order, (0+1)+(2+3)..., whose subtrees linear.h adds within a rank.

namespace specfabric::model {

// Calls add(left, right) for every pair in turn: the part of `right` is to be added to that of
// `left`. The sum is then that of rank 0.
template <typename Add>
constexpr void ForRankPairs(int ranks, Add add) {
  for (int distance = 1; distance < ranks; distance *= 2) {
    for (int left = 0; left + distance < ranks; left += 2 * distance) add(left, left + distance);
  }
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARALLEL_RANK_TREE_H_
