// What one step holds.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace specfabric::scheduler {

// Those that have, or can be given, the slot that their next token needs at least. One that cannot
// stays as it is: those before it go on, and end.
void Scheduler::Impl::CollectReady(StepPlan* plan) {
  ready.clear();
  for (size_t i = 0; i < running.size(); ++i) {  // it shrinks behind i
    Sequence* sequence = running[i];
    if (sequence->phase != Phase::kRunning || sequence->wait.waiting()) continue;
    if (!MakeRoom(sequence->kv_written + 1, sequence, plan)) continue;
    ready.push_back(sequence);
  }
}

void Scheduler::Impl::CountPrefill() {
  prefill_left = 0;
  for (const Sequence* sequence : running) {
    if (sequence->phase != Phase::kPrefill) continue;
    prefill_left += sequence->committed_size() - sequence->kv_written;
  }
}

int32_t Scheduler::Impl::PrefillRows(int32_t rows) const {
  return static_cast<int32_t>(
      std::clamp<int64_t>(prefill_left, 0, std::max(0, options.max_step_tokens - rows)));
}

// While a prefill waits, draft tokens leave it a quarter of a step.
int32_t Scheduler::Impl::MaxTreeRows() const {
  return options.max_step_tokens - (PrefillRows(0) > 0 ? options.max_step_tokens / 4 : 0);
}

// A row of a prompt is as much work done as a token that was decoded.
void Scheduler::Impl::AddPrefill(int32_t rows, StepBase* step) const {
  step->tokens += rows;
  step->rows += rows;
  step->max_rows = MaxTreeRows() + rows;
}

StepBase Scheduler::Impl::ReadyStep(base::Nanos now, GainHistogram* gains) const {
  const auto sequences = static_cast<int32_t>(ready.size());
  const int32_t prefill = PrefillRows(sequences);
  StepBase step;
  AddPrefill(prefill, &step);
  step.rows += sequences;
  for (size_t i = 0; i < ready.size(); ++i) {
    const Sequence* sequence = ready[i];
    if (i + kPrefetchContents < ready.size())
      __builtin_prefetch(ready[i + kPrefetchContents]->expected_gain.data());
    const float value = sequence->Value(now);
    step.tokens += value;
    step.context += sequence->kv_written;
    if (!sequence->has_draft) continue;
    for (float expected_gain : sequence->expected_gain) gains->Add(value * expected_gain);
  }
  return step;
}

// Two cohorts, each verified while the drafts of the other are on their way, take
// max(2 half steps, half step + reply) for a round of both; one takes step + reply. Where reading
// the weights bounds a step that is never less, where arithmetic does it often is.
bool Scheduler::Impl::CohortsPay(const GainHistogram& gains, const StepBase& step) const {
  constexpr double kMinSpeedup = 1.03;
  base::Nanos reply = 0;
  for (const Sequence* sequence : ready) {
    if (!sequence->answered) return false;
    reply = std::max(reply, sequence->wait.order().latency);
  }
  const StepTime& time = control.step_time();
  StepBase whole = step;
  whole.delay = reply;
  GainHistogram of_half;
  of_half.Add(gains, 0.5);
  StepBase half = {.tokens = step.tokens / 2,
                   .rows = step.rows / 2,
                   .context = step.context / 2,
                   .delay = 0,
                   .max_rows = step.max_rows};
  const RowAllocation allocation = AllocateRows(of_half, half, time);
  const auto rows = static_cast<int32_t>(half.rows + allocation.draft_tokens);
  half.delay = std::max<base::Nanos>(0, (reply - time.Predict(rows, half.context)) / 2);
  return AllocateRows(of_half, half, time).rate >
         kMinSpeedup * AllocateRows(gains, whole, time).rate;
}

bool Scheduler::Impl::LeavesHalf(const GainHistogram& gains, const StepBase& step) {
  if (ready.empty() || PrefillRows(0) > 0) return cohorts = false;
  if (!cohorts || !AnyWaiting()) {
    cohorts = ready.size() > 1 && CohortsPay(gains, step);
    return cohorts;
  }
  // The other cohort is out, and about as large.
  GainHistogram of_both;
  of_both.Add(gains, 2);
  StepBase both = step;
  both.tokens *= 2;
  both.rows *= 2;
  both.context *= 2;
  cohorts = CohortsPay(of_both, both);
  return false;
}

// Rows of the ready sequences: one for each, and the draft tokens that pay.
void Scheduler::Impl::PlanRunning(base::Nanos now, StepPlan* plan) {
  CollectReady(plan);
  if (!plan->preempted.empty()) CountPrefill();
  GainHistogram gains;
  StepBase step = ReadyStep(now, &gains);
  const bool all = options.speculation == SpeculationPolicy::kAlways;
  if (!all && LeavesHalf(gains, step)) {
    ready.resize(ready.size() / 2);  // the others stay ready
    gains = {};
    step = ReadyStep(now, &gains);
  }
  const RowAllocation allocation = AllocateRows(gains, step, control.step_time(), all);
  int32_t left = allocation.partial;
  for (size_t i = 0; i < ready.size(); ++i) {
    Sequence* sequence = ready[i];
    if (i + kPrefetchSequence < ready.size()) ready[i + kPrefetchSequence]->Prefetch();
    if (i + kPrefetchContents < ready.size()) ready[i + kPrefetchContents]->PrefetchForPlan();
    nodes.clear();
    if (sequence->has_draft) {
      SelectNodes(allocation, sequence->expected_gain, sequence->Value(now), &left, &nodes);
      // Of a weighed tree as many places as the tree has.
      while (!nodes.empty() && nodes.back() >= sequence->draft.tree.size()) nodes.pop_back();
    }
    const int32_t room = blocks.SlotsWithin(*sequence) - sequence->kv_written;
    nodes.resize(std::min<size_t>(nodes.size(), room - 1));
    const auto rows = static_cast<int32_t>(nodes.size()) + 1;
    SPECFABRIC_CHECK(blocks.Grow(sequence->kv_written + rows, sequence));
    PlanTree(nodes, options.block_size, sequence, plan);
    in_flight.push_back(sequence);
  }
}

bool Scheduler::Impl::WaitsForSharedPrefix(int32_t rows, Sequence* sequence) {
  const int32_t first = sequence->published;
  if (filling.empty() || sequence->scores() || sequence->kv_written != first * options.block_size) {
    return false;
  }
  const int32_t end = (sequence->committed_size() - 1) / options.block_size;
  if (first >= end) return false;
  auto other = std::find(filling.begin(), filling.end(), blocks.Key(first, sequence));
  int32_t saved = 0;
  for (int32_t i = first; i < end && other != filling.end(); ++i, ++other) {
    if (*other != blocks.Key(i, sequence)) break;
    saved += options.block_size;
  }
  return saved > 0 && 2 * saved >= rows;
}

void Scheduler::Impl::RecordFilling(int32_t rows, Sequence* sequence) {
  if (!options.prefix_cache) return;
  const int32_t end = (sequence->kv_written + rows) / options.block_size;
  for (int32_t i = sequence->kv_written / options.block_size; i < end; ++i) {
    filling.push_back(blocks.Key(i, sequence));
  }
}

void Scheduler::Impl::PlanPrefills(StepPlan* plan) {
  filling.clear();
  for (Sequence* sequence : running) {
    if (sequence->phase != Phase::kPrefill) continue;
    const int32_t left = options.max_step_tokens - plan->rows();
    if (left <= 0) return;
    const int32_t found = blocks.AdoptCached(sequence);
    if (sequence->preemptions == 0) {
      sequence->cached_tokens += found;
      counted.cache_hits += found;
    }
    const int32_t rows = std::min(left, sequence->committed_size() - sequence->kv_written);
    if (WaitsForSharedPrefix(rows, sequence)) continue;
    RecordFilling(rows, sequence);
    PlanPrefill(rows, options.block_size, sequence, plan);
    in_flight.push_back(sequence);
  }
}

}  // namespace specfabric::scheduler
