// Products of many rows: kTile64 and kTile128.
//
// A block makes the sums of one slice for kOutputs x kRows. Its weights and x pass through shared
// memory, a block of kProductBlock inputs of each at a time, several of which are on their way;
// each of its warps multiplies a part of the tile. All row tiles of the same outputs run side by
// side, so that the weights come from memory once, and from the GPU's cache for all but the first.
// Sums of slices are joined in the workspace.

#include <algorithm>
#include <cstdint>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/product.h"
#include "model/cuda/product_parts.cuh"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AllowShared;
using base::cuda::AwaitCopies;
using base::cuda::AwaitInputs;
using base::cuda::CommitCopies;
using base::cuda::DynamicShared;
using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::StartCopy16;
using base::cuda::Stream;
using base::cuda::TensorType;
using base::cuda::Thread;

constexpr int kTilePieces = kTileBytes / kPieceBytes;

// A shape of tiles: outputs and rows of a block, and of a warp, and how many stages of shared
// memory hold a block of inputs: its tiles of weights, then a line of each row. Lines of 64 bytes,
// two of which fill the 32 banks, are read by eight lanes of a warp at a time, two whole lines:
// without a conflict.
template <int kOutputsOf, int kRowsOf, int kWarpOutputsOf, int kWarpRowsOf, int kStagesOf>
struct TileShape {
  static constexpr int kOutputs = kOutputsOf, kRows = kRowsOf;
  static constexpr int kWarpOutputs = kWarpOutputsOf, kWarpRows = kWarpRowsOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kWarpsAcross = kOutputs / kWarpOutputs;
  static constexpr int kThreads = kWarpsAcross * (kRows / kWarpRows) * kWarp;
  static constexpr int kOutputTiles = kWarpOutputs / kTileOutputs;
  static constexpr int kRowTiles = kWarpRows / kTileRows;
  using Sums = WarpSums<kOutputTiles, kRowTiles>;
  static constexpr int kWeightBytes = kOutputs * kLineBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kLineBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kWeightPieces = kOutputs * kLinePieces / kThreads;  // of a thread
  static constexpr int kInputPieces = kRows * kLinePieces / kThreads;
  static_assert(kSharedBytes <= base::cuda::kMostSharedBytes);
  static_assert(kWeightPieces * kThreads == kOutputs * kLinePieces);
  static_assert(kInputPieces * kThreads == kRows * kLinePieces);
};
using Tile64 = TileShape<128, 64, 64, 32, 4>;
using Tile128 = TileShape<128, 128, 64, 64, 4>;

// The first sums that this block makes.
template <typename Shape>
struct BlockPlace {
  int32_t output = 0, row = 0;
  __device__ BlockPlace()
      : output(static_cast<int32_t>(blockIdx.y) * Shape::kOutputs),
        row(static_cast<int32_t>(blockIdx.x) * Shape::kRows) {}
};

// Fills the stages, one block of inputs after the other. kWhole: rows of x are whole pieces of 16
// bytes, which are copied beside the arithmetic; otherwise a thread copies them element by element.
template <typename Shape, bool kWhole>
class Stages {
 public:
  __device__ Stages(const ProductArgs& args, const SliceShare& share, int32_t blocks)
      : args_(args), memory_(static_cast<uint8_t*>(DynamicShared())), count_(share.count) {
    const BlockPlace<Shape> place;
#pragma unroll
    for (int i = 0; i < Shape::kWeightPieces; ++i) {
      const int at = i * Shape::kThreads + Thread();
      const int32_t tile = place.output / kTileOutputs + at / kTilePieces;
      weights_[i] = WeightsOf(args, blocks, tile, share.first) + at % kTilePieces * kPieceBytes;
    }
#pragma unroll
    for (int i = 0; i < Shape::kInputPieces; ++i) {
      const int at = i * Shape::kThreads + Thread();
      const int32_t row = place.row + at / kLinePieces;
      // Lines beyond the last row are the last row, and not stored.
      x_[i] = static_cast<const uint16_t*>(args.x) +
              int64_t{min(row, args.rows - 1)} * args.inputs + share.first * kProductBlock +
              at % kLinePieces * kPieceElements;
    }
    inputs_left_ =
        args.inputs - share.first * kProductBlock - Thread() % kLinePieces * kPieceElements;
  }

  __device__ const uint8_t* StageOf(int32_t block) const {
    return memory_ + block % Shape::kStages * Shape::kStageBytes;
  }
  // Block `block` of the share, if it has as many.
  __device__ void CopyWeights(int32_t block) {
    if (block >= count_) return;
    uint8_t* const to = memory_ + block % Shape::kStages * Shape::kStageBytes;
#pragma unroll
    for (int i = 0; i < Shape::kWeightPieces; ++i) {
      StartCopy16(to + (i * Shape::kThreads + Thread()) * kPieceBytes,
                  weights_[i] + int64_t{block} * kTileBytes, true);
    }
  }
  __device__ void CopyInputs(int32_t block) {
    if (block >= count_) return;
    uint8_t* const to = memory_ + block % Shape::kStages * Shape::kStageBytes + Shape::kWeightBytes;
    const int32_t left = inputs_left_ - block * kProductBlock;
#pragma unroll
    for (int i = 0; i < Shape::kInputPieces; ++i) {
      CopyPiece(to + (i * Shape::kThreads + Thread()) * kPieceBytes, x_[i] + block * kProductBlock,
                left);
    }
  }

 private:
  // left: inputs of the row from there on.
  __device__ void CopyPiece(uint8_t* to, const uint16_t* from, int32_t left) {
    if constexpr (kWhole) {
      const bool inside = left > 0;
      StartCopy16(to, inside ? from : static_cast<const uint16_t*>(args_.x), inside);
    } else {
      auto* const elements = reinterpret_cast<uint16_t*>(to);
      for (int i = 0; i < kPieceElements; ++i) elements[i] = i < left ? from[i] : uint16_t{0};
    }
  }

  const ProductArgs& args_;
  uint8_t* const memory_;
  const int32_t count_;
  int32_t inputs_left_;
  const uint8_t* weights_[Shape::kWeightPieces];
  const uint16_t* x_[Shape::kInputPieces];
};

template <typename Shape>
struct WarpPlace {
  int output = 0, row = 0;  // within the block's tile
  __device__ WarpPlace()
      : output(Thread() / kWarp % Shape::kWarpsAcross * Shape::kWarpOutputs),
        row(Thread() / kWarp / Shape::kWarpsAcross * Shape::kWarpRows) {}
};

// stage: its weights and x.
template <TensorType kType, typename Shape>
__device__ void MultiplyStage(const uint8_t* stage, typename Shape::Sums* sums) {
  const WarpPlace<Shape> place;
  const int lane = Thread() % kWarp;
  const uint8_t* const mine =
      stage + place.output / kTileOutputs * kTileBytes + lane * int{sizeof(uint4)};
  const uint8_t* const x_lines = stage + Shape::kWeightBytes +
                                 (place.row + GroupOf(lane)) * kLineBytes +
                                 PartOf(lane) * kPieceBytes;
  const auto read = [](const uint8_t* from) { return *reinterpret_cast<const uint4*>(from); };
  TileOfWeights weights[Shape::kOutputTiles];
#pragma unroll
  for (int o = 0; o < Shape::kOutputTiles; ++o) {
    weights[o].operands[0] = read(mine + o * kTileBytes);
    weights[o].operands[1] = read(mine + o * kTileBytes + kOperandBytes);
  }
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const uint4 x = read(x_lines + r * kTileRows * kLineBytes);
#pragma unroll
    for (int o = 0; o < Shape::kOutputTiles; ++o) {
      MultiplyBlock<kType>(weights[o], x, sums->of[o][r]);
    }
  }
}

template <TensorType kType, typename Shape, bool kWhole>
__device__ void SumSlice(const ProductArgs& args, const SliceShare& share, int32_t blocks,
                         typename Shape::Sums* sums) {
  Stages<Shape, kWhole> stages(args, share, blocks);
  // No kernel writes the weights; what they are multiplied with is another's output.
  for (int i = 0; i < Shape::kStages - 1; ++i) stages.CopyWeights(i);
  AwaitInputs();
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    stages.CopyInputs(i);
    CommitCopies();
  }
  for (int32_t block = 0; block < share.count; ++block) {
    AwaitCopies<Shape::kStages - 2>();  // this block's
    __syncthreads();                    // of all threads; and none still reads the block before
    stages.CopyWeights(block + Shape::kStages - 1);
    stages.CopyInputs(block + Shape::kStages - 1);
    CommitCopies();
    MultiplyStage<kType, Shape>(stages.StageOf(block), sums);
  }
}

// Grid: [tiles of rows][tiles of outputs][slices].
template <TensorType kType, typename Shape, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads)
    TiledProduct(ProductArgs args, ProductWorkspace workspace) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const auto slice = static_cast<int>(blockIdx.z);
  typename Shape::Sums sums;
  SumSlice<kType, Shape, kWhole>(args, SliceShare(slices, slice), slices.blocks, &sums);
  LetNextBegin();
  const auto tile = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  if (slices.count > 1 &&
      !JoinSlices<Shape::kThreads>(workspace, tile, slices.count, slice, &sums)) {
    return;
  }
  const BlockPlace<Shape> block;
  const WarpPlace<Shape> warp;
  Store<kType>(args, block.output + warp.output, block.row + warp.row, sums);
}

// As many rows at a time as the workspace has room for.
template <TensorType kType, typename Shape, bool kWhole>
absl::Status Enqueue(ProductArgs args, const ProductWorkspace& workspace, Stream stream) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const int down = (args.outputs + Shape::kOutputs - 1) / Shape::kOutputs;
  int across = (args.rows + Shape::kRows - 1) / Shape::kRows;
  if (slices.count > 1) {
    const size_t needed = size_t(down) * slices.count * Shape::kOutputs * Shape::kRows;
    const auto room = static_cast<int>(std::min<size_t>(
        {workspace.floats / needed, size_t(kProductCounters / down), size_t(across)}));
    if (room == 0) {
      return NoRoomForSums(needed, workspace);
    }
    across = room;
  }
  const int32_t all = args.rows, most = across * Shape::kRows;
  absl::Status status;
  for (int32_t row = 0; row < all && status.ok(); row += most) {
    args.rows = std::min(all - row, most);
    const int tiles = (args.rows + Shape::kRows - 1) / Shape::kRows;
    status.Update(
        Launch("a product of many rows", TiledProduct<kType, Shape, kWhole>,
               dim3(tiles, down, slices.count), dim3(Shape::kThreads),
               {.shared_bytes = Shape::kSharedBytes, .overlaps = args.rows <= kMostOverlappedRows},
               stream, args, workspace));
    args.x = static_cast<const uint16_t*>(args.x) + int64_t{most} * args.inputs;
    const int64_t width = args.result == ProductResult::kGated
                              ? int64_t{args.features} * kElementBytes
                              : int64_t{args.outputs} * int64_t{sizeof(float)};
    args.out = static_cast<uint8_t*>(args.out) + most * width;
  }
  return status;
}

template <TensorType kType>
absl::Status EnqueueOfType(ProductKernel kernel, const ProductArgs& args,
                           const ProductWorkspace& workspace, Stream stream) {
  if (args.inputs % kPieceElements != 0) {
    return Enqueue<kType, Tile64, false>(args, workspace, stream);
  }
  return kernel == ProductKernel::kTile64 ? Enqueue<kType, Tile64, true>(args, workspace, stream)
                                          : Enqueue<kType, Tile128, true>(args, workspace, stream);
}

template <TensorType kType>
absl::Status PrepareType() {
  absl::Status status =
      AllowShared(TiledProduct<kType, Tile64, true>, Tile64::kSharedBytes, kProductShared);
  status.Update(
      AllowShared(TiledProduct<kType, Tile64, false>, Tile64::kSharedBytes, kProductShared));
  status.Update(
      AllowShared(TiledProduct<kType, Tile128, true>, Tile128::kSharedBytes, kProductShared));
  return status;
}

}  // namespace

absl::Status EnqueueTiledProduct(ProductKernel kernel, const ProductArgs& args,
                                 const ProductWorkspace& workspace, Stream stream) {
  return args.type == TensorType::kBFloat16
             ? EnqueueOfType<TensorType::kBFloat16>(kernel, args, workspace, stream)
             : EnqueueOfType<TensorType::kFloat16>(kernel, args, workspace, stream);
}

absl::Status PrepareTiledProducts() {
  absl::Status status = PrepareType<TensorType::kBFloat16>();
  status.Update(PrepareType<TensorType::kFloat16>());
  return status;
}

}  // namespace specfabric::model::cuda
