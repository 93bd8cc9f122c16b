#include <algorithm>
#include <cmath>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "sampling/gumbel.h"
#include "sampling/philox.h"
#include "verification/cuda/arg_max.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kWarp;
using base::cuda::LastToArrive;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::LogitMatrix;
using base::cuda::Stream;
using base::cuda::WarpMax;

constexpr int kThreads = 256;
constexpr int kIds = 4;  // words of a Philox block, one for each id
// Philox blocks that a thread reads at once: of long or many rows, and of a few, which so occupy
// more processors.
constexpr int kManyVectors = 4, kFewVectors = 1;

__device__ float Load(const float* logits, int64_t at) { return logits[at]; }
__device__ float Load(const uint16_t* logits, int64_t at) {
  return __uint_as_float(static_cast<uint32_t>(logits[at]) << 16);
}

struct FourLogits {
  float value[kIds];
};
__device__ FourLogits LoadFour(const float* logits) {
  const float4 four = __ldcg(reinterpret_cast<const float4*>(logits));
  return {four.x, four.y, four.z, four.w};
}
__device__ FourLogits LoadFour(const uint16_t* logits) {
  const ushort4 four = __ldcg(reinterpret_cast<const ushort4*>(logits));
  return {__uint_as_float(uint32_t{four.x} << 16), __uint_as_float(uint32_t{four.y} << 16),
          __uint_as_float(uint32_t{four.z} << 16), __uint_as_float(uint32_t{four.w} << 16)};
}

// What a thread has of a row at a time: the ids 4 b to 4 b + 3 of kVectors Philox blocks b, each 32
// after the one before, so that the lanes of a warp read neighbours. At either end the shard may
// have only some of a block's ids, or none.
template <int kVectors>
struct Part {
  uint32_t block = 0;  // the first
  FourLogits logits[kVectors];
  uint32_t valid = 0;  // bit 4 v + i: id i of vector v is in the shard

  __device__ uint32_t Block(int vector) const { return block + vector * kWarp; }
  __device__ bool IsValid(int vector, int i) const {
    return (valid >> (kIds * vector + i) & 1) != 0;
  }
  __device__ base::TokenId Id(int vector, int i) const {
    return static_cast<base::TokenId>(Block(vector) * kIds) + i;
  }
};

// aligned: four logits load as one word.
template <typename Logit, int kVectors>
__device__ Part<kVectors> ReadPart(const LogitMatrix& shard, const Logit* row, bool aligned,
                                   uint32_t block) {
  Part<kVectors> part;
  part.block = block;
  SPECFABRIC_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = int64_t{part.Block(v)} * kIds - shard.first;
    part.logits[v] = {};
    if (at >= 0 && at + kIds <= shard.size) {
      part.valid |= 0xfu << (kIds * v);
      if (aligned) {
        part.logits[v] = LoadFour(row + at);
        continue;
      }
    }
    SPECFABRIC_UNROLL
    for (int i = 0; i < kIds; ++i) {
      if (at + i < 0 || at + i >= shard.size) continue;
      part.valid |= 1u << (kIds * v + i);
      part.logits[v].value[i] = Load(row, at + i);
    }
  }
  return part;
}

// The best of what a thread has seen of one row.
class Best {
 public:
  __device__ Best(const RowChoice& choice, PackedChoice least)
      : choice_(choice),
        least_(least),
        origin_(sampling::PhiloxCounter(
            {.purpose = sampling::Purpose::kGumbel, .position = choice.position}, 0)) {}

  template <int kVectors>
  __device__ void TakeGreedily(const Part<kVectors>& part);
  // Called by all lanes of a warp together.
  template <int kVectors>
  __device__ void TakePerturbed(const Part<kVectors>& part);
  __device__ PackedChoice packed() const { return best_; }

 private:
  __device__ bool Kept(float logit, base::TokenId id) const {
    return least_ == 0 || Competitor(logit, id) >= least_;
  }
  __device__ float Score(float logit, uint32_t word) const {
    return base::IsFinite(logit) ? fmaf(choice_.temperature, sampling::GumbelFromWord(word), logit)
                                 : sampling::kNotFinite;
  }
  // At least the score, or NaN; little more for words near 0, which win. The exponential variate of
  // a word is at least v = word 2^-32, so that the noise is at most -log(v). What is added is a
  // multiple of all errors of rounding.
  __device__ float UpperBound(float logit, uint32_t word) const {
    constexpr float kLn2 = 0.69314718f, kOfNoise = 0x1p-8f, kOfScore = 0x1p-20f;
    const float v = __uint_as_float(word >> 9 | 0x3f800000u) - 1.0f;  // rounded down
    const float bound = fmaf(-kLn2 * choice_.temperature, log2f(v), logit);
    return fmaf(fabsf(bound), kOfScore, bound) + kOfNoise * choice_.temperature;
  }

  const RowChoice& choice_;
  const PackedChoice least_;
  const sampling::PhiloxBlock origin_;
  PackedChoice best_ = 0;
  float known_ = -INFINITY;  // a score of some candidate of the warp, which the best one reaches
};

template <int kVectors>
__device__ void Best::TakeGreedily(const Part<kVectors>& part) {
  SPECFABRIC_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    SPECFABRIC_UNROLL
    for (int i = 0; i < kIds; ++i) {
      const PackedChoice token = Competitor(part.logits[v].value[i], part.Id(v, i));
      if (part.IsValid(v, i) && (least_ == 0 || token >= least_)) best_ = max(best_, token);
    }
  }
}

// Words of noise are made for all ids, but noise, which takes several times as long, only where the
// score may be the best: of the one with the highest bound first, whose score then excludes nearly
// all others.
template <int kVectors>
__device__ void Best::TakePerturbed(const Part<kVectors>& part) {
  sampling::PhiloxBlock words[kVectors];
  float bound[kVectors][kIds];
  float highest = -INFINITY;
  SPECFABRIC_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    words[v] =
        sampling::Philox4x32(choice_.seed, {part.Block(v), origin_[1], origin_[2], origin_[3]});
    SPECFABRIC_UNROLL
    for (int i = 0; i < kIds; ++i) {
      const float logit = part.logits[v].value[i];
      const bool takes_part = part.IsValid(v, i) && Kept(logit, part.Id(v, i));
      bound[v][i] = takes_part ? UpperBound(logit, words[v][i]) : -INFINITY;
      highest = fmaxf(highest, bound[v][i]);  // not if it is NaN
    }
  }
  highest = WarpMax(highest);
  if (highest > known_) {
    bool mine = false;
    float logit = 0;
    uint32_t word = 0;
    SPECFABRIC_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      SPECFABRIC_UNROLL
      for (int i = 0; i < kIds; ++i) {
        if (bound[v][i] != highest) continue;
        mine = true;
        logit = part.logits[v].value[i];
        word = words[v][i];
      }
    }
    known_ = fmaxf(known_, WarpMax(mine ? Score(logit, word) : -INFINITY));
  }
  SPECFABRIC_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    SPECFABRIC_UNROLL
    for (int i = 0; i < kIds; ++i) {
      const float logit = part.logits[v].value[i];
      if (bound[v][i] < known_ || !part.IsValid(v, i) || !Kept(logit, part.Id(v, i))) continue;
      best_ = max(best_, Pack(Score(logit, words[v][i]), part.Id(v, i)));
    }
  }
}

// Grid: [parts of a row][choices].
template <typename Logit, int kVectors>
__global__ __launch_bounds__(kThreads, 2) void ArgMax(LogitMatrix logits, bool aligned,
                                                      const RowChoice* how,
                                                      const RowFilter* filters, RowJoin* joins,
                                                      PackedChoice* winners) {
  AwaitInputs();
  const RowChoice choice = how[blockIdx.y];
  Best best(choice, filters == nullptr ? 0 : filters[blockIdx.y].least);
  const Logit* const row = static_cast<const Logit*>(logits.logits) + choice.row * logits.stride;
  const uint32_t end = static_cast<uint32_t>(logits.first + logits.size + kIds - 1) / kIds;
  const uint32_t warp = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const uint32_t step = gridDim.x * (kThreads * kVectors);
  // All lanes of a warp take as many steps.
  for (uint32_t first = static_cast<uint32_t>(logits.first) / kIds + warp * (kWarp * kVectors);
       first < end; first += step) {
    const auto part = ReadPart<Logit, kVectors>(logits, row, aligned, first + threadIdx.x % kWarp);
    if (choice.temperature == 0) {
      best.TakeGreedily(part);
    } else {
      best.TakePerturbed(part);
    }
  }
  LetNextBegin();
  const PackedChoice of_lane = WarpMax(best.packed());
  __shared__ PackedChoice of_warp[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = of_lane;
  __syncthreads();
  RowJoin* const join = joins + blockIdx.y;
  if (threadIdx.x == 0) {
    PackedChoice of_block = 0;
    for (const PackedChoice choice_of_warp : of_warp) of_block = max(of_block, choice_of_warp);
    atomicMax(&join->best, static_cast<unsigned long long>(of_block));
  }
  if (!LastToArrive(&join->arrived, gridDim.x) || threadIdx.x != 0) return;
  winners[blockIdx.y] = __ldcg(&join->best);
  join->best = 0;
}

template <typename Logit, int kVectors>
absl::Status LaunchArgMax(const LogitMatrix& logits, const RowChoice* how, const RowFilter* filters,
                          int32_t count, RowJoin* joins, PackedChoice* best, Stream stream) {
  // A row's parts are as long as it takes for at most about this many blocks, which a GPU's
  // processors run at the same time: a block's beginning and end take as long as a part.
  constexpr int64_t kBlocks = 512;
  const auto place = reinterpret_cast<uintptr_t>(logits.logits);
  const bool aligned =
      logits.first % kIds == 0 && logits.stride % kIds == 0 && place % (kIds * sizeof(Logit)) == 0;
  const int64_t steps = logits.size / (kThreads * kVectors * kIds) + 1;  // of all blocks together
  const int64_t each = (steps * count + kBlocks - 1) / kBlocks;
  const dim3 grid(static_cast<unsigned>((steps + each - 1) / each), static_cast<unsigned>(count));
  return Launch("arg-max", ArgMax<Logit, kVectors>, grid, dim3(kThreads), {.overlaps = true},
                stream, logits, aligned, how, filters, joins, best);
}

template <typename Logit>
absl::Status LaunchArgMax(const LogitMatrix& logits, const RowChoice* how, const RowFilter* filters,
                          int32_t count, RowJoin* joins, PackedChoice* best, Stream stream) {
  constexpr int64_t kFew = int64_t{1} << 20;  // ids
  return int64_t{logits.size} * count < kFew
             ? LaunchArgMax<Logit, kFewVectors>(logits, how, filters, count, joins, best, stream)
             : LaunchArgMax<Logit, kManyVectors>(logits, how, filters, count, joins, best, stream);
}

}  // namespace

absl::Status EnqueueArgMax(const LogitMatrix& logits, const RowChoice* how,
                           const RowFilter* filters, int32_t count, RowJoin* joins,
                           PackedChoice* best, Stream stream) {
  constexpr int32_t kMost = 65535;  // of a grid's second dimension
  if (count < 1 || count > kMost || logits.size < 1 || logits.first < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("arg-max of ", count, " rows of ", logits.size, " ids from ", logits.first,
                     ": allowed are 1 to ", kMost, " rows of at least one id from 0 on"));
  }
  return logits.type == base::DataType::kFloat32
             ? LaunchArgMax<float>(logits, how, filters, count, joins, best, stream)
             : LaunchArgMax<uint16_t>(logits, how, filters, count, joins, best, stream);
}

}  // namespace specfabric::verification::cuda
