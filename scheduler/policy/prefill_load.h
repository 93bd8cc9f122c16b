#ifndef SPECFABRIC_SCHEDULER_POLICY_PREFILL_LOAD_H_
#define SPECFABRIC_SCHEDULER_POLICY_PREFILL_LOAD_H_

// The prefill that the running sequences still need, and the rows that it takes from a step. A
// value: counted by CountPrefill, passed to the parts that compare steps (Pacing, StepPlanner,
// DraftOrders). All in rows, one for each token.

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/policy/tree_budget.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

struct PrefillLoad {
  int64_t left = 0;             // of all running sequences
  int32_t max_step_tokens = 0;  // SchedulerOptions::max_step_tokens

  // Prefill rows that a step could take beside `rows` others.
  int32_t RowsBeside(int32_t rows) const {
    return static_cast<int32_t>(std::clamp<int64_t>(left, 0, std::max(0, max_step_tokens - rows)));
  }
  bool any() const { return RowsBeside(0) > 0; }
  // Rows of a step that trees may take: while there is prefill, a quarter of the step is left to
  // it.
  int32_t MaxTreeRows() const { return max_step_tokens - (any() ? max_step_tokens / 4 : 0); }
  // Adds so many prefill rows to a step without max_rows. They count as output tokens, so that
  // speculation for a few sequences never starves the prefill of many.
  void AddTo(int32_t rows, StepBase* step) const {
    step->tokens += rows;
    step->rows += rows;
    step->max_rows = MaxTreeRows() + rows;
  }
};

inline PrefillLoad CountPrefill(absl::Span<Sequence* const> running, int32_t max_step_tokens) {
  PrefillLoad load = {.max_step_tokens = max_step_tokens};
  for (const Sequence* sequence : running) {
    if (sequence->phase != Phase::kPrefill) continue;
    load.left += sequence->committed_size() - sequence->kv_written;
  }
  return load;
}

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_PREFILL_LOAD_H_
