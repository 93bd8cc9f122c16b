#ifndef SPECFABRIC_MODEL_ATTENTION_PLAN_H_
#define SPECFABRIC_MODEL_ATTENTION_PLAN_H_

// The physical KV slots that every row of a batch writes and attends to, computed once per pass and
// used by all layers. A row attends to an ordered list of slots: a run of its sequence's slots,
// then single ones (the ancestors of a tree row, root first). A path of a tree therefore gives the
// same order of tokens as the same tokens laid out as a chain.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/batch.h"

namespace specfabric::model {

struct RowView {
  int32_t write_slot = 0;  // -1: nothing is written (padding rows)
  int32_t run_first = 0;   // into AttentionPlan::slots
  int32_t run_count = 0;
  int32_t extra_first = 0;  // into AttentionPlan::extra
  int32_t extra_count = 0;
  constexpr int32_t visible() const { return run_count + extra_count; }
};

struct AttentionPlan {
  std::vector<int32_t> slots;  // of all sequences, each by logical slot
  std::vector<int32_t> extra;
  std::vector<RowView> rows;
  int32_t max_visible = 0;
};

struct BatchLimits {
  int32_t vocabulary = 0;
  int32_t blocks = 0;
  int32_t block_size = 0;
};

// What the rows of a layer see, where that is less than all that their sequences have.
struct AttentionLimits {
  int32_t window = 0;          // positions, the last of them the row's own; 0: all
  bool causal_blocks = false;  // rows of a block do not see those behind them
  bool operator==(const AttentionLimits&) const = default;
};

// The plan of a layer with such limits. whole: MakeAttentionPlan's of the batch. A sequence's slots
// are of consecutive positions, but for those of a tree, where a row's depth counts. A block's row
// sees as far forward as back.
void LimitPlan(const Batch& batch, const AttentionLimits& limits, const AttentionPlan& whole,
               AttentionPlan* limited);

// Checks the batch and fills `plan`, reusing its memory. The only check of a batch: later code
// relies on it. InvalidArgument: a token id, position, block, mask or row range out of bounds.
absl::Status MakeAttentionPlan(const Batch& batch, const BatchLimits& limits, AttentionPlan* plan);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_ATTENTION_PLAN_H_
