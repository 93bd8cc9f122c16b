#ifndef SPECFABRIC_MODEL_CUDA_LAYERS_H_
#define SPECFABRIC_MODEL_CUDA_LAYERS_H_

// The kernels of a transformer layer between its matrix products. Pointers are to device memory.
// The residual stream, the results of matrix products and all arithmetic are float32; the inputs of
// matrix products have the type `type`. Every row is computed on its own in a fixed order, so that
// its bits do not depend on the other rows. Functions enqueue; for their status see
// base/cuda/launch.h.

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/types.h"
#include "model/checkpoint/config.h"

namespace specfabric::model::cuda {

// residual[row] = the embedding of tokens[row], or zeros if another rank has it.
struct EmbedArgs {
  DataType type = DataType::kBFloat16;
  const void* table = nullptr;  // [count][hidden], or packed (product.h)
  bool packed = false;
  const base::TokenId* tokens = nullptr;  // [rows]
  int32_t rows = 0, hidden = 0;
  base::TokenId first = 0;  // of this rank's tokens
  int32_t count = 0;
  float* residual = nullptr;  // [rows][hidden]
};
absl::Status EnqueueEmbed(const EmbedArgs& args, base::cuda::Stream stream);

// residual[row] += added[row] + bias; normed[row] = residual[row] / rms(residual[row]) * weight
// (Zhang and Sennrich, 1910.07467).
struct NormArgs {
  DataType type = DataType::kBFloat16;
  int32_t rows = 0, hidden = 0;
  float epsilon = 0;
  float* residual = nullptr;      // [rows][hidden]
  const float* added = nullptr;   // [rows][hidden]; null: neither it nor the bias is added
  const float* bias = nullptr;    // [hidden]; null: none
  const float* weight = nullptr;  // [hidden]
  void* normed = nullptr;         // [rows][hidden]
};
absl::Status EnqueueAddAndNorm(const NormArgs& args, base::cuda::Stream stream);

// out[row][i] = silu(gate[row][i]) * up[row][i]; gates and ups lie in gate_up as in a gated
// product's weights (product.h).
struct GateArgs {
  DataType type = DataType::kBFloat16;
  int32_t rows = 0, features = 0;
  const float* gate_up = nullptr;  // [rows][GatedOutputs(features)]
  const float* bias = nullptr;     // [2 * features], gates, then ups; null: none
  void* out = nullptr;             // [rows][features]
};
absl::Status EnqueueGate(const GateArgs& args, base::cuda::Stream stream);

// to[i] = from[index[i]], rows of `width` elements; `from` and `to` do not overlap.
struct KeepArgs {
  DataType type = DataType::kFloat32;
  const int32_t* index = nullptr;  // [rows]
  int32_t rows = 0, width = 0;
  const void* from = nullptr;
  void* to = nullptr;
};
absl::Status EnqueueKeepRows(const KeepArgs& args, base::cuda::Stream stream);

// out[i] = the sum over p of parts[p][i], by a binary tree over the parts in order
// (communicator.h). parts: [ranks][count], at most kMaxSumParts ranks.
constexpr int kMaxSumParts = 64;
absl::Status EnqueueSumParts(const float* parts, int32_t ranks, int64_t count, float* out,
                             base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_LAYERS_H_
