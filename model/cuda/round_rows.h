#ifndef SPECFABRIC_MODEL_CUDA_ROUND_ROWS_H_
#define SPECFABRIC_MODEL_CUDA_ROUND_ROWS_H_

// Which logits a node of a batch of trees has. For .cu files alone.

#include "model/cuda/row_law.h"

namespace specfabric::model::cuda {

// The sequence whose tree has node `node` of the batch.
__device__ inline int32_t SequenceOf(const TreeBatch& trees, int32_t node) {
  int32_t low = 0, high = trees.sequences - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (trees.begin[middle] <= node) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

struct RoundRow {
  const TreeRound* round = nullptr;
  const float* logits = nullptr;  // [vocabulary]
};
__device__ inline RoundRow RowOf(const RoundBatch& batch, int32_t node) {
  const int32_t sequence = SequenceOf(batch.trees, node);
  const TreeRound* const round = batch.rounds + sequence;
  const int64_t row = round->first_logit + (node - batch.trees.begin[sequence]);
  return {round, batch.logits + row * batch.stride};
}

// As a token of a row competes; 0 for what is no number.
__device__ inline PackedChoice Competitor(float logit, int32_t id) {
  return logit == logit ? Pack(logit, id) : 0;
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_ROUND_ROWS_H_
