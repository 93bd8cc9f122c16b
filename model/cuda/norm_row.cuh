#ifndef SPECFABRIC_MODEL_CUDA_NORM_ROW_CUH_
#define SPECFABRIC_MODEL_CUDA_NORM_ROW_CUH_

// Residual and norm of a row by one block, for the kernels that make what is added.

#include <cstdint>

#include "base/cuda/reduce.h"
#include "model/cuda/element.h"
#include "model/cuda/layers.h"

namespace specfabric::model::cuda {

constexpr int kNormThreads = 256;

// Four elements, which a thread reads and writes at once.
struct Four {
  float of[4];
  __device__ Four& operator+=(const Four& other) {
    for (int i = 0; i < 4; ++i) of[i] += other.of[i];
    return *this;
  }
};
__device__ inline Four ReadFour(const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  return {{four.x, four.y, four.z, four.w}};
}
__device__ inline void WriteFour(float* to, const Four& four) {
  *reinterpret_cast<float4*>(to) = make_float4(four.of[0], four.of[1], four.of[2], four.of[3]);
}
__device__ inline void WriteFour(BFloat16Bits* to, const Four& four) {
  const auto pair = [&](int i) {
    return uint32_t{Round<BFloat16Bits>(four.of[i])} | uint32_t{Round<BFloat16Bits>(four.of[i + 1])}
                                                           << 16;
  };
  *reinterpret_cast<uint2*>(to) = make_uint2(pair(0), pair(2));
}

// How many fours of a row a thread has: 2, 4 or 8. 0: the row is no multiple of four, or too long
// for registers.
inline int FoursOf(int32_t hidden) {
  for (const int fours : {2, 4, 8}) {
    if (hidden % 4 == 0 && hidden <= 4 * kNormThreads * fours) return fours;
  }
  return 0;
}

// Called by all kNormThreads threads of a block together. The row is in registers from the first
// read to the last write. What no kernel writes is read when the object is made, which may be
// before AwaitInputs.
template <typename Element, int kFours>
class RowNorm {
 public:
  __device__ explicit RowNorm(const NormArgs& args)
      : args_(args), biased_(args.added != nullptr && args.bias != nullptr) {
#pragma unroll
    for (int v = 0; v < kFours; ++v) {
      if (Place(v) >= args.hidden) continue;
      weight_[v] = ReadFour(args.weight + Place(v));
      if (biased_) bias_[v] = ReadFour(args.bias + Place(v));
    }
  }

  // As EnqueueAddAndNorm of one row; added(at) are four elements of what is added, `at` counted
  // over all rows, and is not called if args.added is null.
  template <typename Added>
  __device__ void AddAndNorm(int32_t row, const Added& added) const {
    const int64_t first = int64_t{row} * args_.hidden;
    Four value[kFours];
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kFours; ++v) {
      if (Place(v) >= args_.hidden) continue;
      value[v] = ReadFour(args_.residual + first + Place(v));
      if (args_.added != nullptr) {
        Add(added(first + Place(v)), v, &value[v]);
        WriteFour(args_.residual + first + Place(v), value[v]);
      }
      for (int i = 0; i < 4; ++i) squares = fmaf(value[v].of[i], value[v].of[i], squares);
    }
    const float mean =
        base::cuda::BlockSum<kNormThreads>(squares) / static_cast<float>(args_.hidden);
    const float scale = 1.0f / sqrtf(mean + args_.epsilon);
    Element* const normed = static_cast<Element*>(args_.normed) + first;
#pragma unroll
    for (int v = 0; v < kFours; ++v) {
      if (Place(v) >= args_.hidden) continue;
      for (int i = 0; i < 4; ++i) value[v].of[i] = value[v].of[i] * scale * weight_[v].of[i];
      WriteFour(normed + Place(v), value[v]);
    }
  }

 private:
  __device__ static int Place(int v) { return 4 * (v * kNormThreads + base::cuda::Thread()); }
  __device__ void Add(const Four& added, int v, Four* value) const {
    for (int i = 0; i < 4; ++i) {
      value->of[i] += added.of[i] + (biased_ ? bias_[v].of[i] : 0.0f);
    }
  }

  const NormArgs& args_;
  const bool biased_;
  Four weight_[kFours], bias_[kFours];
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_NORM_ROW_CUH_
