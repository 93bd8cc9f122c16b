#ifndef SPECFABRIC_MODEL_ATTENTION_PLAN_H_
#define SPECFABRIC_MODEL_ATTENTION_PLAN_H_

// What every row of a batch writes and sees, in physical slots; worked out once a pass and used by
// all layers. A row's visible slots are an ordered list: a run of its sequence's slots, then single
// ones (the ancestors of a tree row, root first). A path of a tree therefore yields the same list,
// by ordinal, as the same tokens laid out as a chain.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/batch.h"

namespace specfabric::model {

struct RowView {
  int32_t write_slot = 0;  // -1: nothing is written, of rows that only pad a pass
  int32_t run_first = 0;   // into AttentionPlan::slots
  int32_t run_count = 0;
  int32_t extra_first = 0;  // into AttentionPlan::extra
  int32_t extra_count = 0;
  constexpr int32_t visible() const { return run_count + extra_count; }
};

struct AttentionPlan {
  std::vector<int32_t> slots;  // of all sequences, each in logical order
  std::vector<int32_t> extra;
  std::vector<RowView> rows;
  int32_t max_visible = 0;
};

struct BatchLimits {
  int32_t vocabulary = 0;
  int32_t blocks = 0;
  int32_t block_size = 0;
};

// Checks the batch (nothing after this checks again) and fills `plan`, reusing its memory.
// InvalidArgument: an id, position, block, mask or row range that cannot be.
absl::Status MakeAttentionPlan(const Batch& batch, const BatchLimits& limits, AttentionPlan* plan);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_ATTENTION_PLAN_H_
