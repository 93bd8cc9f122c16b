// Products of few rows, whose time is that of reading the weights: kRows8 and kRows16.
//
// A warp makes the sums of one slice for 16 outputs and all rows. It keeps kAhead blocks of its
// weights on the way from memory to its registers, with no stop in shared memory, and asks for the
// first of them while the kernel before still runs. The warps of a block have the slices of the
// same outputs, whose sums they join in shared memory, or as many outputs as make eight warps.

#include <algorithm>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/product.h"
#include "model/cuda/product_parts.cuh"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::LoadOnce;
using base::cuda::Stream;
using base::cuda::TensorType;
using base::cuda::Thread;

constexpr int kLeastWarps = 8;
constexpr int kMostWarps = kMostSlices;
// Blocks of weights that are on their way: 8 KiB a warp, 64 KiB with eight warps on a processor. An
// H100 has under way what 4 TB/s bring in a microsecond: 30 KiB a processor.
constexpr int kAhead = 8;

// Which outputs and which blocks of inputs are this warp's.
struct WarpShare {
  int group = 0;  // of outputs, within the block
  int slice = 0;
  int32_t first_output = 0;
  int32_t first = 0, count = 0;  // blocks of inputs
};

__device__ WarpShare ShareOf(const ProductSlices& slices, int groups) {
  const int warp = Thread() / kWarp;
  WarpShare share = {.group = warp / slices.count, .slice = warp % slices.count};
  const auto tile = static_cast<int32_t>(blockIdx.x) * groups + share.group;
  share.first_output = tile * kTileOutputs;
  share.first = share.slice * slices.each;
  share.count = min(slices.each, slices.blocks - share.first);
  return share;
}

// Reads this lane's parts of blocks of weights.
class WeightsReader {
 public:
  __device__ WeightsReader(const ProductArgs& args, const WarpShare& share)
      : inputs_(args.inputs), k_(share.first * kProductBlock + 8 * PartOf(Thread() % kWarp)) {
    for (int half = 0; half < 2; ++half) {
      // Outputs beyond the last are made of the last one's weights, and not stored.
      const int32_t output = share.first_output + GroupOf(Thread() % kWarp) + half * kTileRows;
      rows_[half] = static_cast<const uint16_t*>(args.weights) +
                    int64_t{min(output, args.outputs - 1)} * inputs_;
    }
  }
  __device__ TileOfWeights Read(int32_t block) const {
    TileOfWeights tile = {};
    const int32_t k = k_ + block * kProductBlock;
    if (k < inputs_) {
      tile.rows[0] = LoadOnce(rows_[0] + k);
      tile.rows[1] = LoadOnce(rows_[1] + k);
    }
    return tile;
  }

 private:
  const int32_t inputs_;
  const int32_t k_;
  const uint16_t* rows_[2];
};

// The same of x, for a tile of rows.
class InputsReader {
 public:
  __device__ InputsReader(const ProductArgs& args, const WarpShare& share, int tile)
      : inputs_(args.inputs), k_(share.first * kProductBlock + 8 * PartOf(Thread() % kWarp)) {
    const int32_t row = tile * kTileRows + GroupOf(Thread() % kWarp);
    if (row < args.rows) row_ = static_cast<const uint16_t*>(args.x) + int64_t{row} * inputs_;
  }
  __device__ uint4 Read(int32_t block) const {
    const int32_t k = k_ + block * kProductBlock;
    if (row_ == nullptr || k >= inputs_) return {};
    return *reinterpret_cast<const uint4*>(row_ + k);
  }

 private:
  const int32_t inputs_;
  const int32_t k_;
  const uint16_t* row_ = nullptr;
};

// The sums of the warp's slice: lane 4 g + q has, for each tile of rows, those of outputs g and
// g + 8 and of rows 2 q and 2 q + 1, as the tensor core leaves them.
template <TensorType kType, int kTiles>
__device__ void SumSlice(const ProductArgs& args, const WarpShare& share,
                         float (&sums)[kTiles][4]) {
  constexpr int kInputsAhead = 4 / kTiles;  // they come from a near cache
  const WeightsReader weights(args, share);
  TileOfWeights ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < share.count) ahead[i] = weights.Read(i);
  }
  // No kernel writes the weights; what they are multiplied with is another's output.
  AwaitInputs();
  uint4 inputs[kInputsAhead][kTiles];
  const auto read_inputs = [&](int32_t block, uint4(&to)[kTiles]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      to[tile] = InputsReader(args, share, tile).Read(block);
    }
  };
#pragma unroll
  for (int i = 0; i < kInputsAhead; ++i) {
    if (i < share.count) read_inputs(i, inputs[i]);
  }
  for (int32_t first = 0; first < share.count; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t block = first + i;
      if (block >= share.count) break;
      uint4(&x)[kTiles] = inputs[i % kInputsAhead];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) MultiplyBlock<kType>(ahead[i], x[tile], sums[tile]);
      if (block + kAhead < share.count) ahead[i] = weights.Read(block + kAhead);
      if (block + kInputsAhead < share.count) read_inputs(block + kInputsAhead, x);
    }
  }
}

// Grid: [tiles of outputs / groups of a block]. Block: groups * slices warps.
template <TensorType kType, int kTiles>
__global__ void __launch_bounds__(kMostWarps* kWarp) SmallProduct(ProductArgs args, int groups) {
  constexpr int kRows = kTiles * kTileRows;
  // By warp, that is by group and slice.
  __shared__ float parts[kMostWarps][kRows][kTileOutputs];
  LetNextBegin();
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const WarpShare share = ShareOf(slices, groups);
  float sums[kTiles][4] = {};
  SumSlice<kType, kTiles>(args, share, sums);

  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile * kTileRows + 2 * PartOf(lane) + i % 2;
      parts[warp][row][GroupOf(lane) + i / 2 * kTileRows] = sums[tile][i];
    }
  }
  __syncthreads();
  const auto total = [&](int group, int row, int output) {
    float sum = parts[group * slices.count][row][output];
    for (int s = 1; s < slices.count; ++s) sum += parts[group * slices.count + s][row][output];
    return sum;
  };
  // Outputs, or features, of the block's groups in a row, so that threads store side by side.
  const bool gated = args.result == ProductResult::kGated;
  const int each = gated ? kGatedRows : kTileOutputs, across = groups * each;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * across;
  const int32_t end = gated ? args.features : args.outputs;
  for (int i = Thread(); i < args.rows * across; i += base::cuda::Threads()) {
    const int row = i / across, at = i % across;
    if (first + at >= end) continue;
    const int group = at / each, output = at % each;
    if (gated) {
      StoreGated<kType>(args, row, first + at, total(group, row, output),
                        total(group, row, output + kGatedRows));
    } else {
      StoreFloat(args, row, first + at, total(group, row, output));
    }
  }
}

template <TensorType kType, int kTiles>
absl::Status Enqueue(const ProductArgs& args, Stream stream) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const int tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
  const int groups = std::max(kLeastWarps / slices.count, 1);
  const int blocks = (tiles + groups - 1) / groups, warps = groups * slices.count;
  return Launch("a product of few rows", SmallProduct<kType, kTiles>, dim3(blocks),
                dim3(warps * kWarp), {.overlaps = true}, stream, args, groups);
}

template <TensorType kType>
absl::Status EnqueueOfType(ProductKernel kernel, const ProductArgs& args, Stream stream) {
  return kernel == ProductKernel::kRows8 ? Enqueue<kType, 1>(args, stream)
                                         : Enqueue<kType, 2>(args, stream);
}

}  // namespace

absl::Status EnqueueSmallProduct(ProductKernel kernel, const ProductArgs& args, Stream stream) {
  return args.type == TensorType::kBFloat16
             ? EnqueueOfType<TensorType::kBFloat16>(kernel, args, stream)
             : EnqueueOfType<TensorType::kFloat16>(kernel, args, stream);
}

}  // namespace specfabric::model::cuda
