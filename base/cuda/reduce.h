#ifndef SPECFABRIC_BASE_CUDA_REDUCE_H_
#define SPECFABRIC_BASE_CUDA_REDUCE_H_

// Sums and maxima over the lanes of a warp and the threads of a block, in a fixed order: every
// thread has the same bits. For .cu files alone.

namespace specfabric::base::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

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
