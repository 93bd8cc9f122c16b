// Weights of a checkpoint's order in that of tensor cores (product.h).

#include <cstdint>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "model/cuda/product.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Launch;
using base::cuda::Thread;

constexpr int kThreads = 256;

// Grid: [blocks of inputs / groups][tiles of outputs]. A thread moves pairs of weights, which stay
// together.
__global__ void __launch_bounds__(kThreads)
    Pack(const uint16_t* plain, int32_t outputs, int32_t inputs, uint16_t* packed) {
  constexpr int kPairs = kTileOutputs * kProductBlock / 2;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * kTileOutputs;
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  for (int i = Thread(); i < kPairs; i += kThreads) {
    const int32_t output = first_output + i / (kProductBlock / 2);
    const int32_t k = block * kProductBlock + i % (kProductBlock / 2) * 2;
    const uint16_t* const from = plain + int64_t{output} * inputs + k;
    uint16_t* const to = packed + PackedIndex(inputs, output, k);
    to[0] = output < outputs && k < inputs ? from[0] : uint16_t{0};
    to[1] = output < outputs && k + 1 < inputs ? from[1] : uint16_t{0};
  }
}

}  // namespace

absl::Status EnqueuePack(const void* plain, int32_t outputs, int32_t inputs, void* packed,
                         base::cuda::Stream stream) {
  const int blocks = (inputs + kProductBlock - 1) / kProductBlock;
  const int tiles = (outputs + kTileOutputs - 1) / kTileOutputs;
  return Launch("packing weights", Pack, dim3(blocks, tiles), dim3(kThreads), stream,
                static_cast<const uint16_t*>(plain), outputs, inputs,
                static_cast<uint16_t*>(packed));
}

}  // namespace specfabric::model::cuda
