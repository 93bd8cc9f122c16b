// Products of up to 8 rows, whose time is that of reading the weights: kRows8.
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
using base::cuda::Stream;
using base::cuda::TensorType;
using base::cuda::Thread;
using base::cuda::Threads;

constexpr int kLeastWarps = 8;
constexpr int kMostWarps = kMostSlices;
// Blocks of weights that are on their way: 8 KiB a warp, 64 KiB with eight warps on a processor. An
// H100 has under way what 4 TB/s bring in a microsecond: 30 KiB a processor.
constexpr int kAhead = 8;
constexpr int kInputsAhead = 4;  // they come from a near cache

// Reads this lane's parts of blocks of x.
class InputsReader {
 public:
  __device__ InputsReader(const ProductArgs& args, const SliceShare& share)
      : inputs_(args.inputs), k_(share.first * kProductBlock + 8 * PartOf(Thread() % kWarp)) {
    const int32_t row = GroupOf(Thread() % kWarp);
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

// The sums of the warp's slice.
template <TensorType kType>
__device__ void SumSlice(const ProductArgs& args, const SliceShare& share, int32_t blocks,
                         int32_t tile, float (&sums)[4]) {
  const WeightsReader<1> weights(args, blocks, tile, share.first);
  TileOfWeights ahead[kAhead][1];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < share.count) weights.Read(i, ahead[i]);
  }
  // No kernel writes the weights; what they are multiplied with is another's output.
  AwaitInputs();
  const InputsReader inputs(args, share);
  uint4 x[kInputsAhead];
#pragma unroll
  for (int i = 0; i < kInputsAhead; ++i) {
    if (i < share.count) x[i] = inputs.Read(i);
  }
  for (int32_t first = 0; first < share.count; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t block = first + i;
      if (block >= share.count) break;
      uint4& mine = x[i % kInputsAhead];
      MultiplyBlock<kType>(ahead[i][0], mine, sums);
      if (block + kAhead < share.count) weights.Read(block + kAhead, ahead[i]);
      if (block + kInputsAhead < share.count) mine = inputs.Read(block + kInputsAhead);
    }
  }
}

// Grid: [tiles of outputs / groups of a block]. Block: groups * slices warps.
template <TensorType kType>
__global__ void __launch_bounds__(kMostWarps* kWarp) SmallProduct(ProductArgs args, int groups) {
  // By warp, that is by group and slice.
  __shared__ float parts[kMostWarps][kTileRows][kTileOutputs];
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const int lane = Thread() % kWarp, warp = Thread() / kWarp;
  const int32_t tile = static_cast<int32_t>(blockIdx.x) * groups + warp / slices.count;
  float sums[4] = {};
  SumSlice<kType>(args, SliceShare(slices, warp % slices.count), slices.blocks, tile, sums);
  LetNextBegin();

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    parts[warp][2 * PartOf(lane) + i % 2][GroupOf(lane) + i / 2 * kTileRows] = sums[i];
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
  for (int i = Thread(); i < args.rows * across; i += Threads()) {
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

template <TensorType kType>
absl::Status Enqueue(const ProductArgs& args, Stream stream) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const int tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
  const int groups = std::max(kLeastWarps / slices.count, 1);
  const int blocks = (tiles + groups - 1) / groups, warps = groups * slices.count;
  return Launch("a product of few rows", SmallProduct<kType>, dim3(blocks), dim3(warps * kWarp),
                {.overlaps = true}, stream, args, groups);
}

}  // namespace

absl::Status EnqueueSmallProduct(const ProductArgs& args, Stream stream) {
  return args.type == TensorType::kBFloat16 ? Enqueue<TensorType::kBFloat16>(args, stream)
                                            : Enqueue<TensorType::kFloat16>(args, stream);
}

}  // namespace specfabric::model::cuda
