#ifndef SPECFABRIC_SCHEDULER_POLICY_STEP_PLANNER_H_
#define SPECFABRIC_SCHEDULER_POLICY_STEP_PLANNER_H_

// What a step that starts now holds: a row for every sequence that is ready, the draft tokens that
// pay, and as much prefill as fits beside them. Owns the cohorts and the memory of plans that were
// given back. Called by Scheduler::Plan. It changes the sequences that it plans, and through
// Admission may preempt others.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/kv/prefix_hash.h"
#include "scheduler/kv/sequence_blocks.h"
#include "scheduler/policy/admission.h"
#include "scheduler/policy/cohorts.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/policy/tree_budget.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

class StepPlanner {
 public:
  // All must outlive it.
  StepPlanner(const SchedulerOptions& options, const GoodputControl& control,
              SequenceBlocks* blocks, Admission* admission)
      : options_(options), control_(control), blocks_(blocks), admission_(admission) {}

  // The next step, without its number; without sequences if there is nothing to do. prefill: of all
  // running sequences.
  StepPlan Plan(const PrefillLoad& prefill, base::Nanos now);
  // The sequences of the last plan, in its order.
  absl::Span<Sequence* const> planned() const { return planned_; }
  bool cohorts() const { return cohorts_.active(); }
  // A plan that nobody needs any more: the next one uses its memory.
  void Recycle(StepPlan plan);

 private:
  StepPlan EmptyPlan();
  void PlanRunning(PrefillLoad prefill, base::Nanos now, StepPlan* plan);
  void CollectReady(StepPlan* plan);
  StepBase ReadyStep(const PrefillLoad& prefill, base::Nanos now, GainHistogram* gains) const;
  base::Nanos Waited() const;
  void PlanPrefills(StepPlan* plan);
  bool WaitsForSharedPrefix(int32_t rows, Sequence* sequence);
  void RecordFilling(int32_t rows, Sequence* sequence);

  const SchedulerOptions& options_;
  const GoodputControl& control_;
  SequenceBlocks* const blocks_;
  Admission* const admission_;
  Cohorts cohorts_;
  std::vector<Sequence*> planned_;
  StepPlan spare_plan_;  // empty

  // Scratch of one Plan, kept for its memory.
  std::vector<Sequence*> ready_;
  std::vector<int32_t> nodes_;
  std::vector<BlockKey> filling_;  // keys of the blocks that this step's prefills so far will fill
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_STEP_PLANNER_H_
