#ifndef SPECFABRIC_MODEL_CUDA_PRODUCT_PARTS_CUH_
#define SPECFABRIC_MODEL_CUDA_PRODUCT_PARTS_CUH_

// What the kernels of product.h have in common: the places of terms in a tensor core, how the sums
// of slices become one, and what becomes of that.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/gated.h"
#include "model/cuda/product.h"

namespace specfabric::model::cuda {

// Bytes of a block of kProductBlock inputs: of a row of x, and of a tile of weights.
constexpr int kElementBytes = 2;
constexpr int kLineBytes = kProductBlock * kElementBytes;
// x comes by pieces of 16 bytes.
constexpr int kPieceBytes = 16, kPieceElements = kPieceBytes / kElementBytes;
constexpr int kLinePieces = kLineBytes / kPieceBytes;
constexpr int kOperandBytes = kOperandElements * kElementBytes, kTileBytes = 2 * kOperandBytes;

__device__ inline int GroupOf(int lane) { return lane / 4; }
__device__ inline int PartOf(int lane) { return lane % 4; }

// The kernels let the next one begin once their sums are made, and not before: its blocks would
// take what room there is, two on one processor and none on another, and stay there. For the same
// reason products of more rows than this do not begin before the kernel before them has ended.
constexpr int32_t kMostOverlappedRows = 16;

// The blocks of inputs of a slice.
struct SliceShare {
  int32_t first = 0, count = 0;
  __device__ SliceShare(const ProductSlices& slices, int slice)
      : first(slice * slices.each), count(min(slices.each, slices.blocks - first)) {}
};

// Where a tile's blocks of weights begin, from block `first` on; of a tile beyond the last, whose
// sums are not stored, the last one's.
__device__ inline const uint8_t* WeightsOf(const ProductArgs& args, int32_t blocks, int32_t tile,
                                           int32_t first) {
  const int32_t last = (args.outputs - 1) / kTileOutputs;
  return static_cast<const uint8_t*>(args.weights) +
         (int64_t{min(tile, last)} * blocks + first) * kTileBytes;
}

// A lane's part of a tile of weights, for one block of inputs (PackedIndex).
struct TileOfWeights {
  uint4 operands[2];
};

// Reads this lane's parts of the warp's kTiles tiles, from `first_tile` on, straight from memory.
template <int kTiles>
class WeightsReader {
 public:
  __device__ WeightsReader(const ProductArgs& args, int32_t blocks, int32_t first_tile,
                           int32_t first_block) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      from_[t] = WeightsOf(args, blocks, first_tile + t, first_block) +
                 base::cuda::Thread() % base::cuda::kWarp * sizeof(uint4);
    }
  }
  // Of a block, counted from first_block.
  __device__ void Read(int32_t block, TileOfWeights (&to)[kTiles]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint8_t* const from = from_[t] + int64_t{block} * kTileBytes;
      to[t] = {{base::cuda::LoadOnce(from), base::cuda::LoadOnce(from + kOperandBytes)}};
    }
  }

 private:
  const uint8_t* from_[kTiles];
};

// x: of a row g = lane / 4 of a tile of rows the inputs 8 q to 8 q + 7 of the block, q = lane % 4.
// So they are read with one instruction and are the operands of two products without being moved:
// those with k % 8 < 4 stand in the first at the columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9.
template <base::cuda::TensorType kType>
__device__ inline void MultiplyBlock(const TileOfWeights& weights, const uint4& x,
                                     float (&sums)[4]) {
  const uint4 &first = weights.operands[0], &second = weights.operands[1];
  base::cuda::MultiplyAdd<kType>({first.x, first.y, first.z, first.w}, {x.x, x.y}, sums);
  base::cuda::MultiplyAdd<kType>({second.x, second.y, second.z, second.w}, {x.z, x.w}, sums);
}

// The sums of a warp's tiles, as tensor cores leave them: lane 4 g + q has, of each tile of 16
// outputs and 8 rows, outputs g and g + 8 of rows 2 q and 2 q + 1.
template <int kOutputTiles, int kRowTiles>
struct WarpSums {
  static constexpr int kCount = kOutputTiles * kRowTiles * 4;  // of a thread
  float of[kOutputTiles][kRowTiles][4] = {};

  // Calls run(i, sum) for all, i the number of the sum among the thread's.
  template <typename Function>
  __device__ void ForEach(const Function& run) {
#pragma unroll
    for (int o = 0; o < kOutputTiles; ++o) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) run((o * kRowTiles + r) * 4 + i, of[o][r][i]);
      }
    }
  }
};

// Leaves the sums of one slice, which a block has made, in the workspace. In the block that ends
// last of the `slices` with the same tile, true, with the sums of all slices; the others are done.
template <int kThreads, typename Sums>
__device__ bool JoinSlices(const ProductWorkspace& workspace, int tile, int slices, int slice,
                           Sums* sums) {
  using base::cuda::Thread;
  const auto place = [&](int of_slice) {
    return workspace.sums + (int64_t{tile} * slices + of_slice) * Sums::kCount * kThreads +
           Thread();
  };
  float* const mine = place(slice);
  sums->ForEach([&](int i, float& sum) { mine[i * kThreads] = sum; });
  if (!base::cuda::LastToArrive(&workspace.counters[tile], static_cast<unsigned>(slices))) {
    return false;
  }
  sums->ForEach([&](int i, float& sum) { sum = __ldcg(place(0) + i * kThreads); });
  for (int s = 1; s < slices; ++s) {
    const float* const next = place(s);
    sums->ForEach([&](int i, float& sum) { sum += __ldcg(next + i * kThreads); });
  }
  return true;
}

// ResourceExhausted: a product's sums of slices find no room in the workspace.
inline absl::Status NoRoomForSums(size_t needed, const ProductWorkspace& workspace) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a product's sums need ", needed, " floats, ", workspace.floats, " are there"));
}

constexpr char kProductShared[] = "shared memory of products";

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

// Stores a warp's sums, those of its first tile being of `first_output` and `first_row`.
template <base::cuda::TensorType kType, int kOutputTiles, int kRowTiles>
__device__ void Store(const ProductArgs& args, int32_t first_output, int32_t first_row,
                      const WarpSums<kOutputTiles, kRowTiles>& sums) {
  const int lane = base::cuda::Thread() % base::cuda::kWarp;
#pragma unroll
  for (int o = 0; o < kOutputTiles; ++o) {
    const int32_t tile = first_output + o * kTileOutputs;
    const int32_t output = tile + GroupOf(lane);
    const int32_t feature = tile / 2 + GroupOf(lane);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int32_t row = first_row + r * kTileRows + 2 * PartOf(lane) + odd;
        if (row >= args.rows) continue;
        const float low = sums.of[o][r][odd], high = sums.of[o][r][2 + odd];
        if (args.result == ProductResult::kGated) {
          if (feature < args.features) StoreGated<kType>(args, row, feature, low, high);
          continue;
        }
        if (output < args.outputs) StoreFloat(args, row, output, low);
        if (output + kTileRows < args.outputs) StoreFloat(args, row, output + kTileRows, high);
      }
    }
  }
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PRODUCT_PARTS_CUH_
