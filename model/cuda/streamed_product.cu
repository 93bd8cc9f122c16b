// Products of up to 64 rows, whose time is that of reading the weights as well: kRows16, kRows32
// and kRows64.
//
// A block makes the sums of one slice for as many outputs as its eight warps have, and all rows. As
// in small_product.cu, weights go straight to the registers of the one warp that needs them. x,
// which all of them need, passes through shared memory, some blocks of inputs at a time, of which
// the next are on their way. Sums of slices are joined in the workspace.

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

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kStages = 3;  // of x

// Rows of a block, tiles of outputs of a warp, and the blocks of inputs whose weights are on their
// way, some 8 KiB a warp. A stage has x for as many.
template <int kRowsOf, int kWarpTilesOf, int kAheadOf>
struct StreamShape {
  static constexpr int kRows = kRowsOf, kRowTiles = kRows / kTileRows;
  static constexpr int kWarpTiles = kWarpTilesOf;
  static constexpr int kTiles = kWarps * kWarpTiles;  // of a block
  static constexpr int kAhead = kAheadOf;             // blocks of inputs
  static constexpr int kStagePieces = kAhead * kRows * kLinePieces;
  static constexpr int kStageBytes = kStagePieces * kPieceBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kBlocks = kWarpTiles == 1 ? 2 : 1;  // at least, on a processor
  using Sums = WarpSums<kWarpTiles, kRowTiles>;
  static_assert(kStagePieces % kThreads == 0);
};

// Fills the stages with x. Lines of 64 bytes: the rows of a block of inputs, then those of the
// next.
template <typename Shape>
class InputStages {
 public:
  __device__ InputStages(const ProductArgs& args, const SliceShare& share)
      : args_(args), share_(share), memory_(static_cast<uint8_t*>(DynamicShared())) {}

  // Stage `stage` of the slice, if it has as many.
  __device__ void Copy(int32_t stage) {
    if (stage * Shape::kAhead >= share_.count) return;
    uint8_t* const to = memory_ + stage % kStages * Shape::kStageBytes;
#pragma unroll
    for (int i = 0; i < Shape::kStagePieces / kThreads; ++i) {
      const int at = i * kThreads + Thread();
      const int piece = at % kLinePieces, row = at / kLinePieces % Shape::kRows;
      const int32_t block =
          share_.first + stage * Shape::kAhead + at / (kLinePieces * Shape::kRows);
      const int32_t k = block * kProductBlock + piece * kPieceElements;
      const bool valid = row < args_.rows && k < args_.inputs;
      const auto* const from = static_cast<const uint16_t*>(args_.x);
      StartCopy16(to + at * kPieceBytes, valid ? from + int64_t{row} * args_.inputs + k : from,
                  valid);
    }
  }
  // This lane's part of a tile of rows, of block `ahead` of a stage.
  __device__ uint4 Read(int32_t stage, int ahead, int tile) const {
    const int lane = Thread() % kWarp;
    const int line = ahead * Shape::kRows + tile * kTileRows + GroupOf(lane);
    return *reinterpret_cast<const uint4*>(memory_ + stage % kStages * Shape::kStageBytes +
                                           line * kLineBytes + PartOf(lane) * kPieceBytes);
  }

 private:
  const ProductArgs& args_;
  const SliceShare& share_;
  uint8_t* const memory_;
};

template <TensorType kType, typename Shape>
__device__ void SumSlice(const ProductArgs& args, const SliceShare& share, int32_t blocks,
                         int32_t first_tile, typename Shape::Sums* sums) {
  constexpr int kAhead = Shape::kAhead;
  const WeightsReader<Shape::kWarpTiles> weights(args, blocks, first_tile, share.first);
  TileOfWeights ahead[kAhead][Shape::kWarpTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < share.count) weights.Read(i, ahead[i]);
  }
  // No kernel writes the weights; what they are multiplied with is another's output.
  AwaitInputs();
  InputStages<Shape> inputs(args, share);
  for (int stage = 0; stage < kStages - 1; ++stage) {
    inputs.Copy(stage);
    CommitCopies();
  }
  for (int32_t stage = 0; stage * kAhead < share.count; ++stage) {
    AwaitCopies<kStages - 2>();  // this stage's
    __syncthreads();             // of all threads; and none still reads the stage before
    inputs.Copy(stage + kStages - 1);
    CommitCopies();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t block = stage * kAhead + i;
      if (block >= share.count) break;
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        const uint4 x = inputs.Read(stage, i, r);
#pragma unroll
        for (int t = 0; t < Shape::kWarpTiles; ++t) {
          MultiplyBlock<kType>(ahead[i][t], x, sums->of[t][r]);
        }
      }
      if (block + kAhead < share.count) weights.Read(block + kAhead, ahead[i]);
    }
  }
}

// Grid: [groups of tiles of outputs][slices].
template <TensorType kType, typename Shape>
__global__ void __launch_bounds__(kThreads, Shape::kBlocks)
    StreamedProduct(ProductArgs args, ProductWorkspace workspace) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const auto slice = static_cast<int>(blockIdx.y);
  const int32_t first_tile =
      static_cast<int32_t>(blockIdx.x) * Shape::kTiles + Thread() / kWarp * Shape::kWarpTiles;
  const SliceShare share(slices, slice);
  typename Shape::Sums sums;
  SumSlice<kType, Shape>(args, share, slices.blocks, first_tile, &sums);
  LetNextBegin();
  if (slices.count > 1 &&
      !JoinSlices<kThreads>(workspace, static_cast<int>(blockIdx.x), slices.count, slice, &sums)) {
    return;
  }
  Store<kType>(args, first_tile * kTileOutputs, 0, sums);
}

template <TensorType kType, typename Shape>
absl::Status Enqueue(const ProductArgs& args, const ProductWorkspace& workspace, Stream stream) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  constexpr int kOutputs = Shape::kTiles * kTileOutputs;
  const int across = (args.outputs + kOutputs - 1) / kOutputs;
  const size_t needed = size_t(across) * slices.count * kOutputs * Shape::kRows;
  if (slices.count > 1 && (needed > workspace.floats || across > kProductCounters)) {
    return NoRoomForSums(needed, workspace);
  }
  return Launch("a product of some rows", StreamedProduct<kType, Shape>, dim3(across, slices.count),
                dim3(kThreads),
                {.shared_bytes = Shape::kSharedBytes, .overlaps = args.rows <= kMostOverlappedRows},
                stream, args, workspace);
}

using Rows16 = StreamShape<16, 1, 8>;
using Rows32 = StreamShape<32, 1, 8>;
using Rows32Wide = StreamShape<32, 2, 4>;
using Rows64 = StreamShape<64, 1, 6>;
using Rows64Wide = StreamShape<64, 2, 4>;

template <TensorType kType>
absl::Status EnqueueOfType(ProductKernel kernel, const ProductArgs& args,
                           const ProductWorkspace& workspace, Stream stream) {
  switch (kernel) {
    case ProductKernel::kRows16:
      return Enqueue<kType, Rows16>(args, workspace, stream);
    case ProductKernel::kRows32:
      return Enqueue<kType, Rows32>(args, workspace, stream);
    case ProductKernel::kRows32Wide:
      return Enqueue<kType, Rows32Wide>(args, workspace, stream);
    case ProductKernel::kRows64:
      return Enqueue<kType, Rows64>(args, workspace, stream);
    default:
      return Enqueue<kType, Rows64Wide>(args, workspace, stream);
  }
}

template <TensorType kType>
absl::Status PrepareType() {
  absl::Status status =
      AllowShared(StreamedProduct<kType, Rows16>, Rows16::kSharedBytes, kProductShared);
  status.Update(AllowShared(StreamedProduct<kType, Rows32>, Rows32::kSharedBytes, kProductShared));
  status.Update(
      AllowShared(StreamedProduct<kType, Rows32Wide>, Rows32Wide::kSharedBytes, kProductShared));
  status.Update(AllowShared(StreamedProduct<kType, Rows64>, Rows64::kSharedBytes, kProductShared));
  status.Update(
      AllowShared(StreamedProduct<kType, Rows64Wide>, Rows64Wide::kSharedBytes, kProductShared));
  return status;
}

}  // namespace

absl::Status EnqueueStreamedProduct(ProductKernel kernel, const ProductArgs& args,
                                    const ProductWorkspace& workspace, Stream stream) {
  return args.type == TensorType::kBFloat16
             ? EnqueueOfType<TensorType::kBFloat16>(kernel, args, workspace, stream)
             : EnqueueOfType<TensorType::kFloat16>(kernel, args, workspace, stream);
}

absl::Status PrepareStreamedProducts() {
  absl::Status status = PrepareType<TensorType::kBFloat16>();
  status.Update(PrepareType<TensorType::kFloat16>());
  return status;
}

}  // namespace specfabric::model::cuda
