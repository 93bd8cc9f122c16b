#include "base/cuda/launch.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/norm_row.cuh"
#include "model/cuda/peer_sum.h"
#include "model/cuda/rank_sum.cuh"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::Stream;
using base::cuda::Thread;

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

// The half of the block's own part that its next sum takes, and that sum's number.
struct Turn {
  uint32_t epoch;
  int64_t place;
  __device__ explicit Turn(const PeerSumArgs& args)
      : epoch(args.ended[blockIdx.x] + 1),
        place((int64_t{epoch % 2} * kPeerBlocks + blockIdx.x) * args.floats_each) {}
};

// After it every rank's part can be read. Called by all threads of the block together, which have
// written this rank's.
__device__ void Meet(const PeerSumArgs& args, uint32_t epoch) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  __threadfence_system();  // of every thread's writes, before one thread signals for all
  __syncthreads();
  if (thread < args.ranks) Tell(args, thread, epoch);
  __syncthreads();  // no thread waits before all signals are sent
  if (thread < args.ranks) Await(args, thread, epoch);
  __syncthreads();
}

__global__ void __launch_bounds__(kPeerThreads) Sum(PeerSumArgs args, float* data, int64_t count) {
  LetNextBegin();
  AwaitInputs();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const Turn turn(args);
  const int64_t begin = int64_t{blockIdx.x} * kPeerThreads + thread;
  const int64_t stride = int64_t{gridDim.x} * kPeerThreads;
  float* const mine = args.parts[args.rank] + turn.place;
  for (int64_t i = begin, at = thread; i < count; i += stride, at += kPeerThreads) {
    mine[at] = data[i];
  }
  Meet(args, turn.epoch);
  for (int64_t i = begin, at = thread; i < count; i += stride, at += kPeerThreads) {
    data[i] = RankSum<kMaxPeers>(args.ranks, [&](int r) { return args.parts[r][turn.place + at]; });
  }
  if (thread == 0) args.ended[blockIdx.x] = turn.epoch;
}

// The same for whole rows, which the block then adds to the residual and normalises. Grid: at most
// kPeerBlocks, which take the rows in turn.
template <typename Element, int kFours>
__global__ void __launch_bounds__(kPeerThreads) SumAndNorm(PeerSumArgs args, NormArgs norm_args) {
  static_assert(kPeerThreads == kNormThreads);
  LetNextBegin();
  const RowNorm<Element, kFours> norm(norm_args);
  AwaitInputs();
  const Turn turn(args);
  const int32_t hidden = norm_args.hidden;
  const auto first = static_cast<int32_t>(blockIdx.x), stride = static_cast<int32_t>(gridDim.x);
  float* const mine = args.parts[args.rank] + turn.place;
  for (int32_t row = first, n = 0; row < norm_args.rows; row += stride, ++n) {
    for (int32_t i = 4 * Thread(); i < hidden; i += 4 * kPeerThreads) {
      WriteFour(mine + int64_t{n} * hidden + i,
                ReadFour(norm_args.added + int64_t{row} * hidden + i));
    }
  }
  Meet(args, turn.epoch);
  for (int32_t row = first, n = 0; row < norm_args.rows; row += stride, ++n) {
    const int64_t shift = turn.place + int64_t{n - row} * hidden;
    norm.AddAndNorm(row, [&](int64_t at) {
      return RankSum<kMaxPeers>(args.ranks,
                                [&](int r) { return ReadFour(args.parts[r] + shift + at); });
    });
  }
  if (Thread() == 0) args.ended[blockIdx.x] = turn.epoch;
}

}  // namespace

absl::Status EnqueuePeerSum(const PeerSumArgs& args, float* data, int64_t count, Stream stream) {
  if (count < 1 || count > args.floats_each * kPeerBlocks) {
    return absl::InvalidArgumentError(absl::StrCat("a sum of ", count, " floats; allowed: 1 to ",
                                                   args.floats_each * kPeerBlocks));
  }
  const int64_t blocks = (count + kPeerThreads - 1) / kPeerThreads;
  const auto grid = static_cast<unsigned>(blocks < kPeerBlocks ? blocks : kPeerBlocks);
  return Launch("sum over peers", Sum, dim3(grid), dim3(kPeerThreads), {.overlaps = true}, stream,
                args, data, count);
}

bool SumsAndNorms(const PeerSumArgs& args, int32_t rows, int32_t hidden) {
  const int64_t rows_each = (int64_t{rows} + kPeerBlocks - 1) / kPeerBlocks;
  return FoursOf(hidden) > 0 && rows_each * hidden <= args.floats_each;
}

absl::Status EnqueuePeerSumAndNorm(const PeerSumArgs& args, const NormArgs& norm, Stream stream) {
  if (norm.rows < 1 || norm.added == nullptr || !SumsAndNorms(args, norm.rows, norm.hidden)) {
    return absl::InvalidArgumentError(absl::StrCat("a sum and norm of ", norm.rows, " rows of ",
                                                   norm.hidden, "; allowed: as SumsAndNorms says"));
  }
  return ForElement(norm.type, [&](auto element) {
    using Element = decltype(element);
    const auto launch = [&](void (*kernel)(PeerSumArgs, NormArgs)) {
      return Launch("sum over peers and norm", kernel,
                    dim3(static_cast<unsigned>(norm.rows < kPeerBlocks ? norm.rows : kPeerBlocks)),
                    dim3(kPeerThreads), {.overlaps = true}, stream, args, norm);
    };
    switch (FoursOf(norm.hidden)) {
      case 2:
        return launch(SumAndNorm<Element, 2>);
      case 4:
        return launch(SumAndNorm<Element, 4>);
      default:
        return launch(SumAndNorm<Element, 8>);
    }
  });
}

}  // namespace specfabric::model::cuda
