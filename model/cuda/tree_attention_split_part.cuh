#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_PART_CUH_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_PART_CUH_

// Results of attention over some slots, as the lanes of a warp hold them, how they are folded, and
// how they are kept in memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/cuda/tensor_core.h"

namespace specfabric::model::cuda {

// A warp takes a quarter of a leaf's slots for the scores, and a quarter of the head's values for
// the output, of all lines: each key and value is read once from shared memory.
constexpr int kSplitWarps = 4;

// Eights of a head's values that a warp has.
template <int kHeadDim>
constexpr int kColumns = kHeadDim / kSplitWarps / 8;

// The result of some slots for a lane's two lines of sixteen, line g = lane / 4 and line g + 8: the
// highest score, the sum of the exponentials of all less it, and the values weighted with them.
// With q = lane % 4 and n = kColumns, a lane has 2 n consecutive values of a line, those of its
// warp from 2 q n on: out[j][0] is value j of these and out[j][1] value n + j for line g, and
// out[j][2], out[j][3] are the same for line g + 8.
template <int kHeadDim>
struct Part {
  static constexpr int kRun = 2 * kColumns<kHeadDim>;  // values of a line

  __device__ float& At(int half, int i) {
    return out[i % kColumns<kHeadDim>][2 * half + i / kColumns<kHeadDim>];
  }
  __device__ float At(int half, int i) const {
    return out[i % kColumns<kHeadDim>][2 * half + i / kColumns<kHeadDim>];
  }

  float highest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
  float out[kColumns<kHeadDim>][4] = {};
};

// 2^x, of -infinity 0 and of 0 exactly 1; results below the smallest normal number are 0.
__device__ inline float Exp2(float x) {
#ifdef SPECFABRIC_EMULATED_GPU
  return exp2f(x);
#else
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#endif
}

// 0 where there was no score, so that differences from it are no NaN.
__device__ inline float Reference(float highest) { return highest == -INFINITY ? 0.0f : highest; }

// Whether something is done to a lane's two lines.
struct Lines {
  bool of[2] = {true, true};
};

// Joins the result of slots with that of those before them. If either is of no slots, the other's
// bits come out: its factor is 2^0, which is 1, and what is added is 0.
template <int kHeadDim>
__device__ void Fold(const Part<kHeadDim>& next, Part<kHeadDim>* whole, Lines lines = {}) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!lines.of[half]) continue;
    const float highest = fmaxf(whole->highest[half], next.highest[half]);
    const float keep = Exp2(whole->highest[half] - Reference(highest));
    const float weight = Exp2(next.highest[half] - Reference(highest));
    whole->highest[half] = highest;
    whole->sum[half] = fmaf(next.sum[half], weight, whole->sum[half] * keep);
#pragma unroll
    for (int i = 0; i < Part<kHeadDim>::kRun; ++i) {
      whole->At(half, i) = fmaf(next.At(half, i), weight, whole->At(half, i) * keep);
    }
  }
}

template <base::cuda::TensorType kType>
__device__ uint32_t RoundPair(float low, float high) {
  uint32_t bits = 0;
  if constexpr (kType == base::cuda::TensorType::kBFloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

// Writes a lane's values of a line over their sum, rounded, where they belong. Aligned to 8 bytes.
template <base::cuda::TensorType kType, int kHeadDim>
__device__ void StoreOut(const Part<kHeadDim>& part, int half, uint16_t* to) {
#pragma unroll
  for (int i = 0; i < Part<kHeadDim>::kRun; i += 4) {
    const auto value = [&](int e) { return part.At(half, i + e) / part.sum[half]; };
    *reinterpret_cast<uint2*>(to + i) = {RoundPair<kType>(value(0), value(1)),
                                         RoundPair<kType>(value(2), value(3))};
  }
}

// A lane's result of a line: its values at `values`, aligned to 16 bytes; the other two at `stats`,
// which lanes of one line share, so that only one of them `leads`.
template <int kHeadDim>
__device__ void StorePart(const Part<kHeadDim>& part, int half, bool leads, float* values,
                          float* stats) {
#pragma unroll
  for (int i = 0; i < Part<kHeadDim>::kRun; i += 4) {
    *reinterpret_cast<float4*>(values + i) = {part.At(half, i), part.At(half, i + 1),
                                              part.At(half, i + 2), part.At(half, i + 3)};
  }
  if (leads) *reinterpret_cast<float2*>(stats) = {part.highest[half], part.sum[half]};
}
template <int kHeadDim>
__device__ void LoadPart(const float* values, const float* stats, int half, Part<kHeadDim>* part) {
  const float2 both = __ldcg(reinterpret_cast<const float2*>(stats));
  part->highest[half] = both.x;
  part->sum[half] = both.y;
#pragma unroll
  for (int i = 0; i < Part<kHeadDim>::kRun; i += 4) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(values + i));
    part->At(half, i) = four.x;
    part->At(half, i + 1) = four.y;
    part->At(half, i + 2) = four.z;
    part->At(half, i + 3) = four.w;
  }
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_PART_CUH_
