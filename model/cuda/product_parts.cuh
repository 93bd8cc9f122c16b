#ifndef SPECFABRIC_MODEL_CUDA_PRODUCT_PARTS_CUH_
#define SPECFABRIC_MODEL_CUDA_PRODUCT_PARTS_CUH_

// What the kernels of product.h have in common: the places of terms in a tensor core, and what
// becomes of a sum.

#include <cstdint>

#include "base/cuda/tensor_core.h"
#include "model/cuda/gated.h"
#include "model/cuda/product.h"

namespace specfabric::model::cuda {

// A lane's part of one block of kProductBlock inputs: 16 bytes of a row, inputs 8 q to 8 q + 7 of
// the block, where q = lane % 4. Lane 4 g + q holds rows g and g + 8 of a tile of weights and row g
// of a tile of x. So a block's terms are read with one instruction for each row, and are the
// operands of two of a tensor core's products without being moved: k % 8 in 0 to 3 stand in the
// first at the columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, and those in 4 to 7 in the second.
struct TileOfWeights {
  uint4 rows[2];
};

template <base::cuda::TensorType kType>
__device__ inline void MultiplyBlock(const TileOfWeights& weights, const uint4& x,
                                     float (&sums)[4]) {
  const uint4 &low = weights.rows[0], &high = weights.rows[1];
  base::cuda::MultiplyAdd<kType>({low.x, high.x, low.y, high.y}, {x.x, x.y}, sums);
  base::cuda::MultiplyAdd<kType>({low.z, high.z, low.w, high.w}, {x.z, x.w}, sums);
}

__device__ inline int GroupOf(int lane) { return lane / 4; }
__device__ inline int PartOf(int lane) { return lane % 4; }

__device__ inline void StoreFloat(const ProductArgs& args, int32_t row, int32_t output, float sum) {
  static_cast<float*>(args.out)[int64_t{row} * args.outputs + output] = sum;
}

template <base::cuda::TensorType kType>
__device__ inline void StoreGated(const ProductArgs& args, int32_t row, int32_t feature, float gate,
                                  float up) {
  if (args.bias != nullptr) {
    gate += args.bias[feature];
    up += args.bias[args.features + feature];
  }
  static_cast<uint16_t*>(args.out)[int64_t{row} * args.features + feature] =
      base::cuda::RoundTo<kType>(Gated(gate, up));
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PRODUCT_PARTS_CUH_
