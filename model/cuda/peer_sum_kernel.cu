#include "base/cuda/launch.h"
#include "model/cuda/peer_sum.h"
#include "model/parallel/rank_tree.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Launch;
using base::cuda::Stream;

// Signals rank `peer` that this block has begun its sum number `epoch`. Its earlier writes are
// visible to whoever sees the signal.
__device__ void Tell(const PeerSumArgs& args, int32_t peer, uint32_t epoch) {
  uint32_t* const mine = &args.begun[peer][int64_t{blockIdx.x} * kMaxPeers + args.rank];
  __nv_atomic_store_n(mine, epoch, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
}

// Waits for the same signal of rank `peer`. Counts wrap around; no rank is more than one sum ahead.
__device__ void Await(const PeerSumArgs& args, int32_t peer, uint32_t epoch) {
  uint32_t* const theirs = &args.begun[args.rank][int64_t{blockIdx.x} * kMaxPeers + peer];
  const auto behind = [&] {
    const uint32_t told = __nv_atomic_load_n(theirs, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM);
    return static_cast<int32_t>(told - epoch) < 0;
  };
  while (behind()) __nanosleep(20);
}

__global__ void Sum(PeerSumArgs args, float* data, int64_t count) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const uint32_t epoch = args.ended[blockIdx.x] + 1;
  const int64_t place = (int64_t{epoch % 2} * kPeerBlocks + blockIdx.x) * args.floats_each;
  const int64_t begin = int64_t{blockIdx.x} * kPeerThreads + thread;
  const int64_t stride = int64_t{gridDim.x} * kPeerThreads;
  float* const mine = args.parts[args.rank] + place;
  for (int64_t i = begin, at = thread; i < count; i += stride, at += kPeerThreads) {
    mine[at] = data[i];
  }
  __threadfence_system();  // of every thread's writes, before one thread signals for all
  __syncthreads();
  if (thread < args.ranks) Tell(args, thread, epoch);
  __syncthreads();  // no thread waits before all signals are sent
  if (thread < args.ranks) Await(args, thread, epoch);
  __syncthreads();
  for (int64_t i = begin, at = thread; i < count; i += stride, at += kPeerThreads) {
    float parts[kMaxPeers];
    for (int32_t r = 0; r < args.ranks; ++r) parts[r] = args.parts[r][place + at];
    ForRankPairs(args.ranks, [&](int left, int right) { parts[left] += parts[right]; });
    data[i] = parts[0];
  }
  if (thread == 0) args.ended[blockIdx.x] = epoch;
}

}  // namespace

absl::Status EnqueuePeerSum(const PeerSumArgs& args, float* data, int64_t count, Stream stream) {
  if (count < 1 || count > args.floats_each * kPeerBlocks) {
    return absl::InvalidArgumentError(absl::StrCat("a sum of ", count, " floats; allowed: 1 to ",
                                                   args.floats_each * kPeerBlocks));
  }
  const int64_t blocks = (count + kPeerThreads - 1) / kPeerThreads;
  const auto grid = static_cast<unsigned>(blocks < kPeerBlocks ? blocks : kPeerBlocks);
  return Launch("sum over peers", Sum, dim3(grid), dim3(kPeerThreads), stream, args, data, count);
}

}  // namespace specfabric::model::cuda
