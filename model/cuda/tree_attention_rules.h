#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_RULES_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_RULES_H_

// The shapes and limits of tree attention on a device, and the checks of a batch against them that
// every kernel's plan begins with.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/batch.h"

namespace specfabric::model::cuda {

struct TreeAttentionRules {
  int32_t heads = 0;     // of this rank; a multiple of kv_heads
  int32_t kv_heads = 0;  // of this rank
  int32_t head_dim = 0;  // 64 or 128
  int32_t blocks = 0;    // of the cache
  int32_t block_size = 0;
  // What one batch may have at most.
  int32_t max_rows = 0;
  int32_t max_sequences = 0;
  int32_t max_blocks = 0;  // of a sequence
  int32_t max_mask_words = 1;
  int32_t processors = 0;  // streaming multiprocessors of the device
  bool batch_invariant = false;
  int32_t chunk = 1024;  // slots, of FlashInfer's kernel if batch_invariant; a multiple of 128
  // Every batch has the same launches on the same addresses, as a CUDA graph needs. Thread blocks
  // are launched for the largest batch, so the limits should be no larger than they must.
  bool fixed_grid = false;
};

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Rows whose heads of a KV head, `group` each, fill a thread block of `lines` lines; and blocks
// that those of one row fill.
constexpr int32_t RowsOf(int32_t group, int32_t lines) { return std::max(1, lines / group); }
constexpr int32_t PartsOf(int32_t group, int32_t lines) {
  return static_cast<int32_t>(CeilDivide(group, lines));
}

absl::Status RulesError(const std::string& what);
// InvalidArgument: a shape that there is no kernel for, or limits below 1.
absl::Status CheckRules(const TreeAttentionRules& rules);

// Checks the batch and sets `order` to its sequences with rows, by their first row. Those of a
// block (BatchSequence::block) have masks, as trees do, which may hold nodes behind a row's own.
// InvalidArgument: a batch beyond the limits, or one that MakeAttentionPlan refuses for its rows,
// blocks or masks.
absl::Status CheckBatch(const Batch& batch, const TreeAttentionRules& rules,
                        std::vector<int32_t>* order);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_RULES_H_
