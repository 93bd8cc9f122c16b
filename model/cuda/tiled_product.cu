// Products of many rows: kTile32, kTile64 and kTile128.
//
// A block makes kOutputs x kRows sums. Its weights and inputs pass through shared memory, a block
// of kProductBlock inputs of each at a time, several of which are on their way; each of its warps
// multiplies a part of the tile. All row tiles of the same outputs run side by side, so that the
// weights come from memory once, and from the GPU's cache for all but the first.
//
// Sums of slices, when a block makes several, are added in shared memory; where slices are shared
// out among blocks, these leave them in the workspace, and the last one to end adds them.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/product.h"
#include "model/cuda/product_parts.cuh"

namespace specfabric::model::cuda {
namespace {

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

constexpr int kElementBytes = 2;
constexpr int kLineBytes = kProductBlock * kElementBytes;  // of one output or row, in a stage
constexpr int kPieceBytes = 16, kPieceElements = kPieceBytes / kElementBytes;
constexpr int kPieces = kLineBytes / kPieceBytes;

// A shape of tiles: outputs and rows of a block, and of a warp, and how many stages of shared
// memory hold a block of inputs. Lines of 64 bytes, two of which fill the 32 banks, are read by
// eight lanes of a warp at a time, two whole lines: without a conflict.
template <int kOutputsOf, int kRowsOf, int kWarpOutputsOf, int kWarpRowsOf, int kStagesOf>
struct TileShape {
  static constexpr int kOutputs = kOutputsOf, kRows = kRowsOf;
  static constexpr int kWarpOutputs = kWarpOutputsOf, kWarpRows = kWarpRowsOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kWarpsAcross = kOutputs / kWarpOutputs;
  static constexpr int kWarps = kWarpsAcross * (kRows / kWarpRows);
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kOutputTiles = kWarpOutputs / kTileOutputs;
  static constexpr int kRowTiles = kWarpRows / kTileRows;
  static constexpr int kSums = kOutputTiles * kRowTiles * 4;  // of a thread
  static constexpr int kLines = kOutputs + kRows;
  static constexpr int kStageBytes = kLines * kLineBytes;
  // Sums of the slices before, where a block makes more than one.
  static constexpr int kTotalsBytes = kSums * kThreads * int{sizeof(float)};
  static constexpr int kMostBytes = kStages * kStageBytes + kTotalsBytes;
  static_assert(kMostBytes <= base::cuda::kMostSharedBytes);
};
// Few rows are a matter of reading the weights, so more stages are on their way. The last has two
// blocks on a processor: 112 KiB each, and four warps whose parts are square.
using Tile32 = TileShape<128, 32, 32, 32, 6>;
using Tile64 = TileShape<128, 64, 64, 32, 5>;
using Tile128 = TileShape<128, 128, 64, 64, 3>;

// Which slices this block makes.
struct BlockShare {
  int32_t first_output = 0, first_row = 0;
  int first_slice = 0, slice_count = 0;
  int32_t first = 0, end = 0;  // blocks of inputs
};

template <typename Shape>
__device__ BlockShare ShareOf(const ProductSlices& slices, int splits) {
  BlockShare share;
  share.first_row = static_cast<int32_t>(blockIdx.x) * Shape::kRows;
  share.first_output = static_cast<int32_t>(blockIdx.y) * Shape::kOutputs;
  share.first_slice = splits == 1 ? 0 : static_cast<int>(blockIdx.z);
  share.slice_count = splits == 1 ? slices.count : 1;
  share.first = share.first_slice * slices.each;
  share.end = min((share.first_slice + share.slice_count) * slices.each, slices.blocks);
  return share;
}

// Fills the stages. Lines are the block's outputs, then its rows. kWhole: lines of global memory
// are whole pieces of 16 bytes, which are copied beside the arithmetic; otherwise a thread copies
// them element by element.
template <typename Shape, bool kWhole>
class Stages {
 public:
  __device__ Stages(const ProductArgs& args, const BlockShare& share, uint8_t* memory)
      : args_(args), share_(share), memory_(memory) {}

  // The lines of a block of inputs, kLineBytes each.
  __device__ uint8_t* LinesOf(int32_t block) const {
    return memory_ + (block - share_.first) % Shape::kStages * Shape::kStageBytes;
  }
  __device__ void CopyWeights(int32_t block) { Copy<0, Shape::kOutputs>(block); }
  __device__ void CopyInputs(int32_t block) { Copy<Shape::kOutputs, Shape::kLines>(block); }

 private:
  template <int kBegin, int kEnd>
  __device__ void Copy(int32_t block) {
    constexpr int kEach = (kEnd - kBegin) * kPieces / Shape::kThreads;
    static_assert(kEach * Shape::kThreads == (kEnd - kBegin) * kPieces);
    if (block >= share_.end) return;
    uint8_t* const lines = LinesOf(block);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = kBegin * kPieces + i * Shape::kThreads + Thread();
      const int line = at / kPieces, piece = at % kPieces;
      CopyPiece(lines + at * kPieceBytes, line, block * kProductBlock + piece * kPieceElements);
    }
  }
  __device__ void CopyPiece(uint8_t* to, int line, int32_t k) {
    const bool weights = line < Shape::kOutputs;
    const int32_t at =
        weights ? share_.first_output + line : share_.first_row + line - Shape::kOutputs;
    const bool valid = at < (weights ? args_.outputs : args_.rows);
    const auto* const from = static_cast<const uint16_t*>(weights ? args_.weights : args_.x) +
                             (valid ? int64_t{at} * args_.inputs : 0);
    if constexpr (kWhole) {
      const bool inside = valid && k < args_.inputs;
      StartCopy16(to, from + (inside ? k : 0), inside);
    } else {
      auto* const elements = reinterpret_cast<uint16_t*>(to);
      for (int i = 0; i < kPieceElements; ++i) {
        elements[i] = valid && k + i < args_.inputs ? from[k + i] : uint16_t{0};
      }
    }
  }

  const ProductArgs& args_;
  const BlockShare& share_;
  uint8_t* const memory_;
};

// The sums of one warp's part of the tile, as tensor cores leave them: lane 4 g + q has, of each
// tile of 16 outputs and 8 rows, outputs g and g + 8 of rows 2 q and 2 q + 1.
template <typename Shape>
struct WarpSums {
  float of[Shape::kOutputTiles][Shape::kRowTiles][4] = {};

  // Calls run(i, sum) for all, i the number of the sum among the thread's.
  template <typename Function>
  __device__ void ForEach(const Function& run) {
#pragma unroll
    for (int o = 0; o < Shape::kOutputTiles; ++o) {
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) run((o * Shape::kRowTiles + r) * 4 + i, of[o][r][i]);
      }
    }
  }
};

template <typename Shape>
struct WarpPlace {
  int output = 0, row = 0;  // within the block's tile
  __device__ WarpPlace()
      : output(Thread() / kWarp % Shape::kWarpsAcross * Shape::kWarpOutputs),
        row(Thread() / kWarp / Shape::kWarpsAcross * Shape::kWarpRows) {}
};

template <TensorType kType, typename Shape, bool kWhole>
__device__ void MultiplyStage(const Stages<Shape, kWhole>& stages, int32_t block,
                              WarpSums<Shape>* sums) {
  const WarpPlace<Shape> place;
  const int lane = Thread() % kWarp;
  const uint8_t* const mine =
      stages.LinesOf(block) + GroupOf(lane) * kLineBytes + PartOf(lane) * kPieceBytes;
  const auto read = [&](int line) {
    return *reinterpret_cast<const uint4*>(mine + line * kLineBytes);
  };
  TileOfWeights weights[Shape::kOutputTiles];
#pragma unroll
  for (int o = 0; o < Shape::kOutputTiles; ++o) {
    weights[o].rows[0] = read(place.output + o * kTileOutputs);
    weights[o].rows[1] = read(place.output + o * kTileOutputs + kTileRows);
  }
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const uint4 x = read(Shape::kOutputs + place.row + r * kTileRows);
#pragma unroll
    for (int o = 0; o < Shape::kOutputTiles; ++o) {
      MultiplyBlock<kType>(weights[o], x, sums->of[o][r]);
    }
  }
}

// Makes the sums of the block's slices, and adds them up in `totals`, [sums][threads], if there are
// several.
template <TensorType kType, typename Shape, bool kWhole>
__device__ void SumSlices(const ProductArgs& args, const ProductSlices& slices,
                          const BlockShare& share, uint8_t* memory, WarpSums<Shape>* sums) {
  Stages<Shape, kWhole> stages(args, share, memory);
  auto* const totals = reinterpret_cast<float*>(memory + Shape::kStages * Shape::kStageBytes);
  // No kernel writes the weights; what they are multiplied with is another's output.
  for (int i = 0; i < Shape::kStages - 1; ++i) stages.CopyWeights(share.first + i);
  AwaitInputs();
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    stages.CopyInputs(share.first + i);
    CommitCopies();
  }
  for (int32_t block = share.first; block < share.end; ++block) {
    AwaitCopies<Shape::kStages - 2>();  // this block's
    __syncthreads();                    // of all threads; and none still reads the block before
    stages.CopyWeights(block + Shape::kStages - 1);
    stages.CopyInputs(block + Shape::kStages - 1);
    CommitCopies();
    MultiplyStage<kType, Shape, kWhole>(stages, block, sums);
    const bool slice_ends = (block + 1) % slices.each == 0 && block + 1 < share.end;
    if (!slice_ends) continue;
    const bool first = block < share.first + slices.each;
    sums->ForEach([&](int i, float& sum) {
      float& total = totals[i * Shape::kThreads + Thread()];
      total = first ? sum : total + sum;
      sum = 0;
    });
  }
  if (share.slice_count == 1) return;
  sums->ForEach([&](int i, float& sum) { sum = totals[i * Shape::kThreads + Thread()] + sum; });
}

// Leaves the block's sums in the workspace. In the block that ends last of those with the same
// tile, true, with the sums of all slices; the others are done.
template <typename Shape>
__device__ bool JoinSlices(const ProductWorkspace& workspace, int slices, int slice,
                           WarpSums<Shape>* sums) {
  const int tile = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  const auto place = [&](int of_slice) {
    return workspace.sums + (int64_t{tile} * slices + of_slice) * Shape::kSums * Shape::kThreads +
           Thread();
  };
  float* const mine = place(slice);
  sums->ForEach([&](int i, float& sum) { mine[i * Shape::kThreads] = sum; });
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (Thread() == 0) {
    const auto before = atomicAdd(&workspace.counters[tile], 1U);
    last = before + 1 == static_cast<unsigned>(slices);
    if (last) workspace.counters[tile] = 0;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  sums->ForEach([&](int i, float& sum) {
    const float* const first = place(0);
    sum = first[i * Shape::kThreads];
  });
  for (int s = 1; s < slices; ++s) {
    const float* const next = place(s);
    sums->ForEach([&](int i, float& sum) { sum += next[i * Shape::kThreads]; });
  }
  return true;
}

template <TensorType kType, typename Shape>
__device__ void Store(const ProductArgs& args, const BlockShare& share, WarpSums<Shape>* sums) {
  const WarpPlace<Shape> place;
  const int lane = Thread() % kWarp;
#pragma unroll
  for (int o = 0; o < Shape::kOutputTiles; ++o) {
    const int32_t tile = share.first_output + place.output + o * kTileOutputs;
    const int32_t output = tile + GroupOf(lane);
    const int32_t feature = tile / 2 + GroupOf(lane);
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int32_t row = share.first_row + place.row + r * kTileRows + 2 * PartOf(lane) + odd;
        if (row >= args.rows) continue;
        const float low = sums->of[o][r][odd], high = sums->of[o][r][2 + odd];
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

// Grid: [tiles of rows][tiles of outputs][splits], splits: 1 or as many as slices.
template <TensorType kType, typename Shape, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads)
    TiledProduct(ProductArgs args, ProductWorkspace workspace, int splits) {
  LetNextBegin();
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const BlockShare share = ShareOf<Shape>(slices, splits);
  WarpSums<Shape> sums;
  SumSlices<kType, Shape, kWhole>(args, slices, share, static_cast<uint8_t*>(DynamicShared()),
                                  &sums);
  const bool mine =
      splits == 1 || JoinSlices<Shape>(workspace, slices.count, share.first_slice, &sums);
  if (mine) Store<kType, Shape>(args, share, &sums);
}

// Fewer tiles leave processors without work.
constexpr int64_t kEnoughTiles = 132;

template <TensorType kType, typename Shape, bool kWhole>
absl::Status Enqueue(bool split, const ProductArgs& args, const ProductWorkspace& workspace,
                     Stream stream) {
  const ProductSlices slices = SlicesOf(args.outputs, args.inputs);
  const int across = (args.rows + Shape::kRows - 1) / Shape::kRows;
  const int down = (args.outputs + Shape::kOutputs - 1) / Shape::kOutputs;
  const int64_t tiles = int64_t{across} * down;
  const auto needed = static_cast<size_t>(tiles) * slices.count * Shape::kOutputs * Shape::kRows;
  split = split && tiles < kEnoughTiles && tiles <= kProductCounters && needed <= workspace.floats;
  const int splits = split ? slices.count : 1;
  const bool adds = splits == 1 && slices.count > 1;
  const auto shared =
      static_cast<size_t>(adds ? Shape::kMostBytes : Shape::kStages * Shape::kStageBytes);
  return Launch("a product of many rows", TiledProduct<kType, Shape, kWhole>,
                dim3(across, down, splits), dim3(Shape::kThreads),
                {.shared_bytes = shared, .overlaps = true}, stream, args, workspace, splits);
}

template <TensorType kType>
absl::Status EnqueueOfType(ProductKernel kernel, bool split, const ProductArgs& args,
                           const ProductWorkspace& workspace, Stream stream) {
  if (args.inputs % 8 != 0) return Enqueue<kType, Tile32, false>(split, args, workspace, stream);
  switch (kernel) {
    case ProductKernel::kTile32:
      return Enqueue<kType, Tile32, true>(split, args, workspace, stream);
    case ProductKernel::kTile64:
      return Enqueue<kType, Tile64, true>(split, args, workspace, stream);
    default:
      return Enqueue<kType, Tile128, true>(split, args, workspace, stream);
  }
}

template <TensorType kType, typename Shape, bool kWhole>
absl::Status AllowShared() {
  const auto* const kernel = reinterpret_cast<const void*>(TiledProduct<kType, Shape, kWhole>);
  return base::cuda::ToStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kMostBytes),
      "shared memory of products");
}

template <TensorType kType>
absl::Status PrepareType() {
  absl::Status status = AllowShared<kType, Tile32, true>();
  status.Update(AllowShared<kType, Tile32, false>());
  status.Update(AllowShared<kType, Tile64, true>());
  status.Update(AllowShared<kType, Tile128, true>());
  return status;
}

}  // namespace

absl::Status EnqueueTiledProduct(ProductKernel kernel, bool split, const ProductArgs& args,
                                 const ProductWorkspace& workspace, Stream stream) {
  return args.type == TensorType::kBFloat16
             ? EnqueueOfType<TensorType::kBFloat16>(kernel, split, args, workspace, stream)
             : EnqueueOfType<TensorType::kFloat16>(kernel, split, args, workspace, stream);
}

absl::Status PrepareTiledProducts() {
  absl::Status status = PrepareType<TensorType::kBFloat16>();
  status.Update(PrepareType<TensorType::kFloat16>());
  return status;
}

}  // namespace specfabric::model::cuda
