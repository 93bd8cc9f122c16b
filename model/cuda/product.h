#ifndef SPECFABRIC_MODEL_CUDA_PRODUCT_H_
#define SPECFABRIC_MODEL_CUDA_PRODUCT_H_

// Matrix products of 16-bit floats on tensor cores, out[row][o] = sum over k of
// weights[o][k] x[row][k], such that the bits of out[row][o] depend on the weights, on x[row] and
// on the shape of the weights alone: not on the other rows, their number, the kernel or the GPU's
// number of processors.
//
// That is so by construction, because every kernel adds the terms of an output in one order:
// * k is cut into blocks of kProductBlock, and the blocks into `count` slices of consecutive blocks
//   (SlicesOf), by the shape of the weights.
// * The sum of a slice begins with 0 in an accumulator of a tensor core, to which each block in its
//   turn adds two products of 16 terms: those with k % 8 < 4, then those with k % 8 >= 4. A term
//   has the same place in them in every kernel (MultiplyBlock), whatever the order is in which the
//   GPU adds 16 terms.
// * The sums of slices are added from the first to the last in float32.
// Terms beyond `inputs` are products of zeros.
//
// Weights lie in memory in the order in which tensor cores take them (PackedIndex): a warp reads
// those of 16 outputs and a block of inputs as 1,024 bytes in a row, each lane 16 bytes that are an
// operand as they are.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/cuda/tensor_type.h"
#include "base/isa.h"

namespace specfabric::model::cuda {

constexpr int32_t kProductBlock = 32;
// Outputs and rows that one tensor core's product takes.
constexpr int32_t kTileOutputs = 16, kTileRows = 8;
constexpr int32_t kMostSlices = 16;

struct ProductSlices {
  int32_t blocks = 0;  // of kProductBlock inputs
  int32_t each = 0;    // blocks of a slice; the last may have fewer
  int32_t count = 0;
};

// As many slices as it takes for a thousand warps, of which a GPU's 100 to 150 processors need some
// eight each to have enough reads of memory under way; but none of less than 4 blocks.
SPECFABRIC_HOST_DEVICE constexpr ProductSlices SlicesOf(int32_t outputs, int32_t inputs) {
  constexpr int32_t kWarps = 1024, kLeastBlocks = 4;
  const int32_t blocks = (inputs + kProductBlock - 1) / kProductBlock;
  const int32_t tiles = (outputs + kTileOutputs - 1) / kTileOutputs;
  int32_t slices = 1;
  while (slices < kMostSlices && tiles * slices < kWarps && blocks >= 2 * slices * kLeastBlocks) {
    slices *= 2;
  }
  const int32_t each = (blocks + slices - 1) / slices;
  return {blocks, each, (blocks + each - 1) / each};
}

// Where the weight of an output and an input is among packed weights, whose tiles of kTileOutputs
// outputs and blocks of kProductBlock inputs follow each other, all blocks of a tile first. A block
// has two operands of a tensor core, for the inputs with k % 8 < 4 and for the others, of which
// each lane has eight weights (base/cuda/tensor_core.h, MultiplyAdd's a). What fills the last
// tile and the last block is zeros.
constexpr int32_t kOperandElements = 8 * 32;
SPECFABRIC_HOST_DEVICE constexpr int64_t PackedIndex(int32_t inputs, int32_t output, int32_t k) {
  const int32_t blocks = (inputs + kProductBlock - 1) / kProductBlock;
  const int32_t tile = output / kTileOutputs, o = output % kTileOutputs;
  const int32_t block = k / kProductBlock, q = k % kProductBlock / 8, j = k % 8;
  const int32_t lane = o % 8 * 4 + q, word = o / 8 + j % 4 / 2 * 2;
  const int64_t operand = (int64_t{tile} * blocks + block) * 2 + j / 4;
  return operand * kOperandElements + lane * 8 + word * 2 + j % 2;
}
SPECFABRIC_HOST_DEVICE constexpr int64_t PackedElements(int32_t outputs, int32_t inputs) {
  const int64_t tiles = (outputs + kTileOutputs - 1) / kTileOutputs;
  const int64_t blocks = (inputs + kProductBlock - 1) / kProductBlock;
  return tiles * blocks * kTileOutputs * kProductBlock;
}

// What becomes of the sums.
enum class ProductResult : uint8_t {
  kFloat,  // out[row][o] in float32
  // Rows of the weights are gates and ups in turn, eight of each (GatedRow). out[row][i] =
  // silu(gate[i] + bias) * (up[i] + bias) in the type of the operands, outputs / 2 a row.
  kGated,
};

// Where the gate of feature i is among the weights' rows; its up is kGatedRows further on. There
// are GatedOutputs(features) rows; those of no feature are zeros.
constexpr int32_t kGatedRows = 8;
SPECFABRIC_HOST_DEVICE constexpr int32_t GatedRow(int32_t feature) {
  return feature / kGatedRows * 2 * kGatedRows + feature % kGatedRows;
}
constexpr int32_t GatedOutputs(int32_t features) {
  return (features + kGatedRows - 1) / kGatedRows * 2 * kGatedRows;
}

// Pointers are to device memory, aligned to 16 bytes.
struct ProductArgs {
  base::cuda::TensorType type = base::cuda::TensorType::kBFloat16;
  ProductResult result = ProductResult::kFloat;
  const void* weights = nullptr;  // packed
  int32_t outputs = 0, inputs = 0;
  const void* x = nullptr;  // [rows][inputs]
  int32_t rows = 0;
  void* out = nullptr;          // kFloat: [rows][outputs]; kGated: [rows][features]
  int32_t features = 0;         // kGated
  const float* bias = nullptr;  // kGated: [2 * features], gates, then ups; null: none
};

// The kernels; all give the same bits.
enum class ProductKernel : uint8_t {
  kRows8,   // up to 8 rows: weights go straight to registers, and each warp of a block has a slice
  kRows16,  // up to 16, 32 or 64 rows: the same, but a block's warps share a slice's x
  kRows32,
  kRows32Wide,  // and a warp has twice as many outputs
  kRows64,
  kRows64Wide,
  kTile64,  // blocks of 64 or 128 rows and 128 outputs, which a block's warps share
  kTile128,
};
constexpr ProductKernel kProductKernels[] = {ProductKernel::kRows8,  ProductKernel::kRows16,
                                             ProductKernel::kRows32, ProductKernel::kRows32Wide,
                                             ProductKernel::kRows64, ProductKernel::kRows64Wide,
                                             ProductKernel::kTile64, ProductKernel::kTile128};
const char* Name(ProductKernel kernel);
// All but kTile64 read x by 16 bytes.
bool Takes(ProductKernel kernel, int32_t rows, int32_t inputs);

// Memory for sums of slices that different blocks of a kernel make. The counters are zeros, and are
// so again when a product has ended. Products on one stream may share it.
struct ProductWorkspace {
  float* sums = nullptr;
  size_t floats = 0;
  uint32_t* counters = nullptr;  // [kProductCounters]
};
constexpr int32_t kProductCounters = 1024;

// Enqueues; for its status see base/cuda/launch.h. InvalidArgument: the kernel does not take these
// rows. ResourceExhausted: the workspace has no room for the sums of even the fewest rows.
absl::Status EnqueueProduct(ProductKernel kernel, const ProductArgs& args,
                            const ProductWorkspace& workspace, base::cuda::Stream stream);
// Lets the kernels have the shared memory that they need; to be called once for a device.
absl::Status PrepareProducts();

// packed: PackedElements(outputs, inputs) elements of 16 bits; plain: [outputs][inputs].
absl::Status EnqueuePack(const void* plain, int32_t outputs, int32_t inputs, void* packed,
                         base::cuda::Stream stream);

// What EnqueueProduct is made of: small_product.cu, streamed_product.cu and tiled_product.cu.
absl::Status EnqueueSmallProduct(const ProductArgs& args, base::cuda::Stream stream);
absl::Status EnqueueStreamedProduct(ProductKernel kernel, const ProductArgs& args,
                                    const ProductWorkspace& workspace, base::cuda::Stream stream);
absl::Status PrepareStreamedProducts();
absl::Status EnqueueTiledProduct(ProductKernel kernel, const ProductArgs& args,
                                 const ProductWorkspace& workspace, base::cuda::Stream stream);
absl::Status PrepareTiledProducts();

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PRODUCT_H_
