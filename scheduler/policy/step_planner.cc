#include "scheduler/policy/step_planner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/plan_rows.h"

namespace specfabric::scheduler {

StepPlan StepPlanner::Plan(const PrefillLoad& prefill, base::Nanos now) {
  planned_.clear();
  StepPlan plan = EmptyPlan();
  PlanRunning(prefill, now, &plan);
  PlanPrefills(&plan);
  SPECFABRIC_CHECK(plan.rows() <= options_.max_step_tokens);
  return plan;
}

// With room for any step.
StepPlan StepPlanner::EmptyPlan() {
  StepPlan plan = std::exchange(spare_plan_, {});
  const size_t rows = options_.max_step_tokens;
  plan.tokens.reserve(rows);
  plan.positions.reserve(rows);
  plan.parents.reserve(rows);
  plan.ancestors.reserve(rows);
  plan.logit_rows.reserve(rows);
  plan.score_tokens.reserve(rows);
  plan.moves.reserve(rows);
  plan.sequences.reserve(options_.max_sequences);
  plan.blocks.reserve(blocks_->pool().total());  // more where many are shared
  return plan;
}

void StepPlanner::Recycle(StepPlan plan) {
  plan.tokens.clear();
  plan.positions.clear();
  plan.parents.clear();
  plan.ancestors.clear();
  plan.sequences.clear();
  plan.blocks.clear();
  plan.logit_rows.clear();
  plan.score_tokens.clear();
  plan.moves.clear();
  plan.preempted.clear();
  spare_plan_ = std::move(plan);
}

// Sequences that wait for no draft and have, or can be given, the slot that their last token needs.
// One that cannot be given it is left out of this step: the sequences before it go on, and end.
void StepPlanner::CollectReady(StepPlan* plan) {
  const std::vector<Sequence*>& running = admission_->running();
  ready_.clear();
  for (size_t i = 0; i < running.size(); ++i) {  // preemption removes sequences after i
    Sequence* sequence = running[i];
    if (sequence->phase != Phase::kRunning || sequence->wait.waiting()) continue;
    if (!admission_->MakeRoom(sequence->kv_written + 1, sequence, &plan->preempted)) continue;
    ready_.push_back(sequence);
  }
}

// The step of `ready_`, without its draft tokens, which are added to `gains`.
StepBase StepPlanner::ReadyStep(const PrefillLoad& prefill, base::Nanos now,
                                GainHistogram* gains) const {
  const auto sequences = static_cast<int32_t>(ready_.size());
  StepBase step;
  prefill.AddTo(prefill.RowsBeside(sequences), &step);
  step.rows += sequences;
  for (size_t i = 0; i < ready_.size(); ++i) {
    const Sequence* sequence = ready_[i];
    if (i + kPrefetchContents < ready_.size()) {
      __builtin_prefetch(ready_[i + kPrefetchContents]->expected_gain.data());
    }
    const float value = sequence->Value(now);
    step.tokens += value;
    step.context += sequence->kv_written;
    if (!sequence->has_draft) continue;
    for (float expected_gain : sequence->expected_gain) gains->Add(value * expected_gain);
  }
  return step;
}

// How long the step waited for drafts. The round takes as much longer and yields less a second, so
// that a row must gain less for its time: what is best for the step alone is too little.
base::Nanos StepPlanner::Waited() const {
  base::Nanos waited = 0;
  for (const Sequence* sequence : ready_) {
    if (sequence->has_draft) waited = std::max(waited, sequence->wait.waited());
  }
  return waited;
}

// Rows of the ready sequences: one for each, and the draft tokens that pay.
void StepPlanner::PlanRunning(PrefillLoad prefill, base::Nanos now, StepPlan* plan) {
  CollectReady(plan);
  if (!plan->preempted.empty()) {
    prefill = CountPrefill(admission_->running(), options_.max_step_tokens);
  }
  GainHistogram gains;
  StepBase step = ReadyStep(prefill, now, &gains);
  const StepTime& time = control_.step_time();
  const bool all = options_.speculation == SpeculationPolicy::kAlways;
  if (!all && !control_.waits() &&
      cohorts_.LeavesHalf(ready_, admission_->running(), prefill, gains, step, time)) {
    ready_.resize(ready_.size() / 2);  // the others stay ready
    gains = {};
    step = ReadyStep(prefill, now, &gains);
  }
  if (!cohorts()) step.delay = Waited();
  const RowAllocation allocation = AllocateRows(gains, step, time, all);
  int32_t left = allocation.partial;
  for (size_t i = 0; i < ready_.size(); ++i) {
    Sequence* sequence = ready_[i];
    if (i + kPrefetchSequence < ready_.size()) ready_[i + kPrefetchSequence]->Prefetch();
    if (i + kPrefetchContents < ready_.size()) ready_[i + kPrefetchContents]->PrefetchForPlan();
    nodes_.clear();
    if (sequence->has_draft) {
      SelectNodes(allocation, sequence->expected_gain, sequence->Value(now), &left, &nodes_);
      // Where gains are of places in draw order there may be more places than nodes.
      while (!nodes_.empty() && nodes_.back() >= sequence->draft.tree.size()) nodes_.pop_back();
    }
    const int32_t room = blocks_->SlotsWithin(*sequence) - sequence->kv_written;
    nodes_.resize(std::min<size_t>(nodes_.size(), room - 1));
    const auto rows = static_cast<int32_t>(nodes_.size()) + 1;
    SPECFABRIC_CHECK(blocks_->Grow(sequence->kv_written + rows, sequence));
    PlanTree(nodes_, options_.block_size, sequence, plan);
    planned_.push_back(sequence);
  }
}

// Whether the sequence, which could prefill `rows`, is left out of this step because another one's
// prefill computes blocks that it can adopt afterwards: at least half of those rows.
bool StepPlanner::WaitsForSharedPrefix(int32_t rows, Sequence* sequence) {
  const int32_t first = sequence->published;
  if (filling_.empty() || sequence->scores() ||
      sequence->kv_written != first * options_.block_size) {
    return false;
  }
  const int32_t end = (sequence->committed_size() - 1) / options_.block_size;
  if (first >= end) return false;
  auto other = std::find(filling_.begin(), filling_.end(), blocks_->Key(first, sequence));
  int32_t saved = 0;
  for (int32_t i = first; i < end && other != filling_.end(); ++i, ++other) {
    if (*other != blocks_->Key(i, sequence)) break;
    saved += options_.block_size;
  }
  return saved > 0 && 2 * saved >= rows;
}

void StepPlanner::RecordFilling(int32_t rows, Sequence* sequence) {
  if (!options_.prefix_cache) return;
  const int32_t end = (sequence->kv_written + rows) / options_.block_size;
  for (int32_t i = sequence->kv_written / options_.block_size; i < end; ++i) {
    filling_.push_back(blocks_->Key(i, sequence));
  }
}

void StepPlanner::PlanPrefills(StepPlan* plan) {
  filling_.clear();
  for (Sequence* sequence : admission_->running()) {
    if (sequence->phase != Phase::kPrefill) continue;
    const int32_t left = options_.max_step_tokens - plan->rows();
    if (left <= 0) return;
    blocks_->CountHits(blocks_->AdoptCached(sequence), sequence);
    const int32_t rows = std::min(left, sequence->committed_size() - sequence->kv_written);
    if (WaitsForSharedPrefix(rows, sequence)) continue;
    RecordFilling(rows, sequence);
    PlanPrefill(rows, options_.block_size, sequence, plan);
    planned_.push_back(sequence);
  }
}

}  // namespace specfabric::scheduler
