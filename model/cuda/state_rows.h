#ifndef SPECFABRIC_MODEL_CUDA_STATE_ROWS_H_
#define SPECFABRIC_MODEL_CUDA_STATE_ROWS_H_

// The kernels of hidden states: what a target keeps of a pass and copies from it, and what EAGLE-3
// and MTP drafters do with them before and behind their layers (cpu/eagle3.h, cpu/mtp.h). Pointers
// are to device memory. Every row is computed on its own in a fixed order. Functions enqueue; for
// their status see base/cuda/launch.h.

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "model/checkpoint/config.h"

namespace specfabric::model::cuda {

// kept[row][column] = residual[row], rounded to bfloat16.
struct KeepStateArgs {
  const float* residual = nullptr;  // [rows][hidden]
  int32_t rows = 0, hidden = 0;
  int32_t columns = 0, column = 0;
  uint16_t* kept = nullptr;  // [rows][columns][hidden]
};
absl::Status EnqueueKeepState(const KeepStateArgs& args, base::cuda::Stream stream);

// to[i][j] = kept[rows[i]][columns[j]].
struct GatherStatesArgs {
  const uint16_t* kept = nullptr;  // [.][kept_columns][hidden]
  int32_t kept_columns = 0, hidden = 0;
  const int32_t* rows = nullptr;     // [row_count]
  const int32_t* columns = nullptr;  // [column_count]
  int32_t row_count = 0, column_count = 0;
  uint16_t* to = nullptr;  // [row_count][column_count][hidden]
};
absl::Status EnqueueGatherStates(const GatherStatesArgs& args, base::cuda::Stream stream);

// The inputs of a drafter's layer fc, or an MTP drafter's fused states: states of the type
// `from_type`, rounded to `type`, with a norm over each run of a row.
struct FuseInputsArgs {
  DataType from_type = DataType::kBFloat16, type = DataType::kBFloat16;
  int32_t rows = 0, runs = 0, run = 0;
  float epsilon = 0;
  const void* from = nullptr;     // [rows][runs][run]
  const float* weight = nullptr;  // [runs][run]; null: no norm
  void* out = nullptr;            // [rows][runs][run]
  int32_t* not_finite = nullptr;  // set to 1 if some state is not a finite number; null: unasked
};
absl::Status EnqueueFuseInputs(const FuseInputsArgs& args, base::cuda::Stream stream);

// Pairs of a token's embedding, normed, and a state, normed: what an EAGLE-3 drafter's first layer
// attends over, and an MTP drafter projects.
struct JoinStatesArgs {
  DataType type = DataType::kBFloat16;
  int32_t rows = 0, hidden = 0;
  float epsilon = 0;
  const float* embeddings = nullptr;        // [rows][hidden]
  const float* states = nullptr;            // [rows][hidden]
  const float* embedding_weight = nullptr;  // [hidden]
  const float* state_weight = nullptr;      // [hidden]
  bool state_first = false;                 // of a pair; else the embedding is
  void* joined = nullptr;                   // [rows][2][hidden]
  // What the residual stream begins as, [rows][hidden]: the states, or the normed ones. May be
  // `embeddings`; null: it does not begin so.
  float* residual = nullptr;
  bool begins_normed = false;
};
absl::Status EnqueueJoinStates(const JoinStatesArgs& args, base::cuda::Stream stream);

// out[row][id] = logits[row][places[id]], or kNeverScored where the place is -1: the lowest number,
// since kernels take a row with an infinite logit for a model's error.
constexpr float kNeverScored = std::numeric_limits<float>::lowest();
struct SpreadLogitsArgs {
  int32_t rows = 0, scored = 0, vocabulary = 0;
  const float* logits = nullptr;    // [rows][scored]
  const int32_t* places = nullptr;  // [vocabulary]
  float* out = nullptr;             // [rows][vocabulary]
};
absl::Status EnqueueSpreadLogits(const SpreadLogitsArgs& args, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_STATE_ROWS_H_
