#ifndef SPECFABRIC_MODEL_CUDA_SEQUENTIAL_ROWS_H_
#define SPECFABRIC_MODEL_CUDA_SEQUENTIAL_ROWS_H_

// The kernels of a block drafter's sequential head between its matrix products
// (cpu/sequential_head.h). A node is a token to be drafted: rows[node] is its row of the pass,
// whose output and logits it has. Pointers are to device memory. Every node is computed on its own
// in a fixed order. Functions enqueue; for their status see base/cuda/launch.h.

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/types.h"
#include "model/checkpoint/config.h"

namespace specfabric::model::cuda {

// The embeddings of the tokens before the nodes, and what the product reads that they are part of:
// a state, an embedding and an output, as far as it reads them, each at its place.
struct NodeInputsArgs {
  DataType type = DataType::kBFloat16;  // of table, outputs and joined
  int32_t nodes = 0, hidden = 0, rank = 0;
  const base::TokenId* before = nullptr;                // [nodes]
  const void* table = nullptr;                          // [vocabulary][rank]
  const int32_t* rows = nullptr;                        // [nodes]
  const void* outputs = nullptr;                        // [.][hidden]
  const float* states = nullptr;                        // [nodes][rank], at 0 of joined; null: none
  int32_t embedding_at = 0, output_at = -1, width = 0;  // of joined; -1: no output
  float* embeddings = nullptr;                          // [nodes][rank]
  void* joined = nullptr;                               // [nodes][width]
};
absl::Status EnqueueNodeInputs(const NodeInputsArgs& args, base::cuda::Stream stream);

// What the correction is a product of, and the states that nodes hand on.
// kGated: features = sigmoid(z + b) * embedding. kRecurrent: (g, c, o) = z + b,
// next = sigmoid(g) * state + (1 - sigmoid(g)) * tanh(c), features = tanh(o).
struct NodeFeaturesArgs {
  DataType type = DataType::kBFloat16;  // of features
  MarkovKind markov = MarkovKind::kGated;
  int32_t nodes = 0, rank = 0;
  const float* products = nullptr;    // z: [nodes][rank], or [nodes][3 * rank]
  const float* bias = nullptr;        // b: of one row
  const float* embeddings = nullptr;  // [nodes][rank]; kGated
  const float* states = nullptr;      // [nodes][rank]; kRecurrent
  float* next_states = nullptr;       // [nodes][rank]; kRecurrent
  void* features = nullptr;           // [nodes][rank]
};
absl::Status EnqueueNodeFeatures(const NodeFeaturesArgs& args, base::cuda::Stream stream);

// out[node][id] = logits[rows[node]][places[id]] + corrections[node][places[id]], or kNeverScored
// (state_rows.h) where the place is -1.
struct CorrectLogitsArgs {
  int32_t nodes = 0, scored = 0, vocabulary = 0;
  const int32_t* rows = nullptr;       // [nodes]
  const float* logits = nullptr;       // [.][scored]
  const float* corrections = nullptr;  // [nodes][scored]; may be `out` without places; null: zeros
  const int32_t* places = nullptr;     // [vocabulary]; null: id i has place i
  float* out = nullptr;                // [nodes][vocabulary]
};
absl::Status EnqueueCorrectLogits(const CorrectLogitsArgs& args, base::cuda::Stream stream);

// out[node] = sigmoid(weights * [output; embedding] + the bias behind the weights).
struct ConfidencesArgs {
  DataType type = DataType::kBFloat16;  // of outputs
  int32_t nodes = 0, hidden = 0;
  int32_t rank = 0;  // of the embeddings; 0: they are not read
  const int32_t* rows = nullptr;
  const void* outputs = nullptr;      // [.][hidden]
  const float* embeddings = nullptr;  // [nodes][rank]
  const float* weights = nullptr;     // [hidden + rank + 1]
  float* out = nullptr;               // [nodes]
};
absl::Status EnqueueConfidences(const ConfidencesArgs& args, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_SEQUENTIAL_ROWS_H_
