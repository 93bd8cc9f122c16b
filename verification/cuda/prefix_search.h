#ifndef SPECFABRIC_VERIFICATION_CUDA_PREFIX_SEARCH_H_
#define SPECFABRIC_VERIFICATION_CUDA_PREFIX_SEARCH_H_

// Where a running sum, added up one value after the other, first exceeds a number: found by the
// lanes of a warp together, though only one order of additions has the right bits. The lanes' own
// sums differ from those by a bound of rounding errors, so that what is clearly before or after the
// number by them is so by the others; otherwise the caller adds one after the other. For .cu files
// alone.

#include "base/cuda/reduce.h"

namespace specfabric::verification::cuda {

struct PrefixHit {
  int index = -1;     // -1: not clear, or nowhere
  double before = 0;  // about the sum of the values before it
};

// A bound of the differences, where `values` values, and sums of these, were added to about
// `total`: each addition errs by 2^-53 of it at most, in either order.
__device__ inline double PrefixSlack(int values, double total) {
  return static_cast<double>(values) * 0x1p-51 * total;
}

// start: the sum before the first value. value_at(i) for 0 <= i < count: not negative, and the same
// when it is asked again. Called by all lanes of a warp together, which get the same.
template <typename ValueAt>
__device__ PrefixHit FindPrefixAbove(int count, double start, double wanted, double slack,
                                     ValueAt value_at) {
  using base::cuda::kAllLanes;
  using base::cuda::kWarp;
  const int lane = base::cuda::Thread() % kWarp;
  const int each = (count + kWarp - 1) / kWarp;
  const int begin = min(count, lane * each), end = min(count, begin + each);
  double own = 0;
  for (int i = begin; i < end; ++i) own += value_at(i);
  double through = own;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const double lower = __shfl_up_sync(kAllLanes, through, distance);
    if (lane >= distance) through += lower;
  }
  const double lower = __shfl_up_sync(kAllLanes, through, 1);
  double sum = start + (lane == 0 ? 0.0 : lower);
  const unsigned above = __ballot_sync(kAllLanes, start + through > wanted);
  PrefixHit hit;
  bool clear = false;
  if (above != 0 && lane == __ffs(static_cast<int>(above)) - 1) {
    for (int i = begin; i < end; ++i) {
      const double next = sum + value_at(i);
      if (next > wanted) {
        hit = {i, sum};
        clear = sum + slack <= wanted && next > wanted + slack;
        break;
      }
      sum = next;
    }
  }
  if (!clear) hit.index = -1;
  const unsigned found = __ballot_sync(kAllLanes, clear);
  if (found == 0) return {};
  const int of = __ffs(static_cast<int>(found)) - 1;
  return {__shfl_sync(kAllLanes, hit.index, of), __shfl_sync(kAllLanes, hit.before, of)};
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_PREFIX_SEARCH_H_
