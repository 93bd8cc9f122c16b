#include <algorithm>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "sampling/gumbel.h"
#include "sampling/philox.h"
#include "verification/cuda/arg_max.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::LogitMatrix;
using base::cuda::Stream;
using base::cuda::WarpMax;

constexpr int kThreads = 256;
constexpr int kIds = 4;            // words of a Philox block, one for each id
constexpr int kBlocksAThread = 4;  // Philox blocks; keeps the grid of a short row small

__device__ float Load(const float* logits, int64_t at) { return logits[at]; }
__device__ float Load(const uint16_t* logits, int64_t at) {
  return __uint_as_float(static_cast<uint32_t>(logits[at]) << 16);
}

struct FourLogits {
  float value[kIds];
};
__device__ FourLogits LoadFour(const float* logits) {
  const float4 four = *reinterpret_cast<const float4*>(logits);
  return {four.x, four.y, four.z, four.w};
}
__device__ FourLogits LoadFour(const uint16_t* logits) {
  const ushort4 four = *reinterpret_cast<const ushort4*>(logits);
  return {__uint_as_float(uint32_t{four.x} << 16), __uint_as_float(uint32_t{four.y} << 16),
          __uint_as_float(uint32_t{four.z} << 16), __uint_as_float(uint32_t{four.w} << 16)};
}

__global__ __launch_bounds__(kThreads) void Begin(PackedChoice* best, int32_t count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) best[i] = 0;
}

// A thread takes whole Philox blocks b, the ids 4 b to 4 b + 3; at either end the shard may have
// only some of them. Grid: [parts of a row][choices]. `aligned`: four logits load as one word.
template <typename Logit>
__global__ __launch_bounds__(kThreads) void ArgMax(LogitMatrix logits, bool aligned, const RowChoice* how,
                       const RowFilter* filters, PackedChoice* winners) {
  const RowChoice choice = how[blockIdx.y];
  const PackedChoice least = filters == nullptr ? 0 : filters[blockIdx.y].least;
  const Logit* const values = static_cast<const Logit*>(logits.logits) + choice.row * logits.stride;
  const sampling::PhiloxBlock origin = sampling::PhiloxCounter(
      {.purpose = sampling::Purpose::kGumbel, .position = choice.position}, 0);
  const uint32_t begin = static_cast<uint32_t>(logits.first) / kIds;
  const uint32_t end = static_cast<uint32_t>(logits.first + logits.size + kIds - 1) / kIds;
  const uint32_t step = gridDim.x * blockDim.x;
  PackedChoice best = 0;
  for (uint32_t block = begin + blockIdx.x * blockDim.x + threadIdx.x; block < end; block += step) {
    const int32_t at = static_cast<int32_t>(block * kIds) - logits.first;
    const bool whole = at >= 0 && at + kIds <= logits.size;
    FourLogits four = {};
    if (aligned && whole) {
      four = LoadFour(values + at);
    } else {
      for (int i = 0; i < kIds; ++i) {
        if (at + i >= 0 && at + i < logits.size) four.value[i] = Load(values, at + i);
      }
    }
    sampling::PhiloxBlock words = {};
    if (choice.temperature != 0) {
      words = sampling::Philox4x32(choice.seed, {block, origin[1], origin[2], origin[3]});
    }
    for (int i = 0; i < kIds; ++i) {
      if (at + i < 0 || at + i >= logits.size) continue;
      if (least != 0 && Competitor(four.value[i], logits.first + at + i) < least) continue;
      const float score =
          choice.temperature == 0
              ? four.value[i]
              : fmaf(choice.temperature, sampling::GumbelFromWord(words[i]), four.value[i]);
      const bool finite = base::IsFinite(four.value[i]);
      best = max(best, Pack(finite ? score : sampling::kNotFinite, logits.first + at + i));
    }
  }
  best = WarpMax(best);
  __shared__ PackedChoice of_warp[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = WarpMax(threadIdx.x < kThreads / kWarp ? of_warp[threadIdx.x] : 0);
  if (threadIdx.x == 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(winners + blockIdx.y), best);
  }
}

template <typename Logit>
absl::Status LaunchArgMax(const LogitMatrix& logits, const RowChoice* how, const RowFilter* filters,
                          int32_t count, PackedChoice* best, Stream stream) {
  const auto place = reinterpret_cast<uintptr_t>(logits.logits);
  const bool aligned =
      logits.first % kIds == 0 && logits.stride % kIds == 0 && place % (kIds * sizeof(Logit)) == 0;
  const int blocks = (logits.size + kIds - 1) / kIds + 1;
  const int each = kThreads * kBlocksAThread;
  return Launch("arg-max", ArgMax<Logit>, dim3((blocks + each - 1) / each, count), dim3(kThreads),
                stream, logits, aligned, how, filters, best);
}

}  // namespace

absl::Status EnqueueArgMax(const LogitMatrix& logits, const RowChoice* how,
                           const RowFilter* filters, int32_t count, PackedChoice* best,
                           Stream stream) {
  constexpr int32_t kMost = 65535;  // of a grid's second dimension
  if (count < 1 || count > kMost || logits.size < 1 || logits.first < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("arg-max of ", count, " rows of ", logits.size, " ids from ", logits.first,
                     ": allowed are 1 to ", kMost, " rows of at least one id from 0 on"));
  }
  absl::Status begun = Launch("arg-max", Begin, dim3((count + kThreads - 1) / kThreads),
                              dim3(kThreads), stream, best, count);
  if (!begun.ok()) return begun;
  return logits.type == base::DataType::kFloat32
             ? LaunchArgMax<float>(logits, how, filters, count, best, stream)
             : LaunchArgMax<uint16_t>(logits, how, filters, count, best, stream);
}

}  // namespace specfabric::verification::cuda
