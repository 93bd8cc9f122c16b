#ifndef SPECFABRIC_BASE_CUDA_REDUCE_H_
#define SPECFABRIC_BASE_CUDA_REDUCE_H_

// Sums and maxima over the lanes of a warp and the threads of a block, in a fixed order: every
// thread has the same bits. For .cu files alone.

namespace specfabric::base::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Before a loop over an array that is to stay in registers.
#ifdef __CUDACC__
#define SPECFABRIC_UNROLL _Pragma("unroll")
#else
#define SPECFABRIC_UNROLL
#endif

// For one-dimensional blocks.
__device__ inline int Thread() { return static_cast<int>(threadIdx.x); }
__device__ inline int Threads() { return static_cast<int>(blockDim.x); }

__device__ inline float WarpSum(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

template <typename T>
__device__ T WarpMax(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    value = value < other ? other : value;
  }
  return value;
}

// The value of the block's first thread. Called by all threads of the block together.
template <typename T>
__device__ T OfFirst(T value) {
  __shared__ T shared;
  __syncthreads();  // the previous call's value may still be read
  if (Thread() == 0) shared = value;
  __syncthreads();
  return shared;
}

// The sum of value_at(i) for begin <= i < end, in the order of sampling::TotalProb: kSums partial
// sums of every kSums-th value, then the sum of these. Called by all threads of the block together,
// which all get the same bits.
template <int kSums, typename ValueAt>
__device__ double StridedSum(int begin, int end, ValueAt value_at) {
  __shared__ double sums[kSums];
  __syncthreads();  // the previous call's sums may still be read
  for (int i = Thread(); i < kSums; i += Threads()) {
    double sum = 0;
    for (int at = begin + i; at < end; at += kSums) sum += value_at(at);
    sums[i] = sum;
  }
  __syncthreads();
  double total = 0;
  for (int i = 0; i < kSums; ++i) total += sums[i];
  return total;
}

// The sum of value_at(i) for 0 <= i < count, one after the other. Called by all threads of the
// block together, which share the calls of value_at and all get the same bits.
template <typename ValueAt>
__device__ double OrderedSum(int count, ValueAt value_at) {
  constexpr int kTile = 256;
  __shared__ double tile[kTile], total;
  double sum = 0;  // of the first thread
  for (int first = 0; first < count; first += kTile) {
    const int size = count - first < kTile ? count - first : kTile;
    __syncthreads();  // the previous tile may still be read
    for (int i = Thread(); i < size; i += Threads()) tile[i] = value_at(first + i);
    __syncthreads();
    if (Thread() != 0) continue;
    for (int i = 0; i < size; ++i) sum += tile[i];
  }
  if (Thread() == 0) total = sum;
  __syncthreads();
  return total;
}

// For blocks that share some work and whose last one joins the results, without another launch.
// Called by all threads of a block together once its results are written; true for all threads of
// the last of `blocks` blocks to call it, which see what all of them wrote (with __ldcg or atomics,
// not what their own processor's cache may hold). *arrived is 0 before the first call and after the
// last.
__device__ inline bool LastToArrive(unsigned* arrived, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (Thread() == 0) {
    last = atomicAdd(arrived, 1u) == blocks - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// Called by all kThreads threads of the block together; kThreads is a multiple of a warp.
template <int kThreads>
__device__ float BlockSum(float value) {
  __shared__ float of_warp[kThreads / kWarp];
  value = WarpSum(value);
  __syncthreads();  // the previous call's of_warp may still be read
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += of_warp[warp];
  return sum;
}

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_REDUCE_H_
