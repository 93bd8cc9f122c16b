// What one step holds.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler_impl.h"

namespace specfabric::scheduler {

void Scheduler::Impl::GiveUpLateDrafts(base::Nanos now) {
  for (Sequence* sequence : running) {
    if (!sequence->wait.waiting() || now < sequence->wait.deadline()) continue;
    LatencyOf(sequence->request).Observe(sequence->wait.OnMiss(now, options));
    ++counted.draft_misses;
  }
}

// Those that have, or can be given, the slot that their next token needs at least. One that cannot
// stays as it is: those before it go on, and end.
void Scheduler::Impl::CollectReady(StepPlan* plan) {
  ready.clear();
  for (size_t i = 0; i < running.size(); ++i) {  // it shrinks behind i
    Sequence* sequence = running[i];
    if (sequence->phase != Phase::kRunning || sequence->wait.waiting()) continue;
    if (!MakeRoom(sequence->kv_written + 1, sequence, plan)) continue;
    ready.push_back({RowsWanted(*sequence), sequence});
  }
}

int32_t Scheduler::Impl::RowsWanted(const Sequence& sequence) const {
  if (!sequence.draft) return 1;
  // How many nodes were drawn may depend on the tokens drawn, and what is verified must not,
  // where their probability is weighed (verification.md section 3, Trimming).
  if (speculation::NeedsDraftRows(sequence.request.coupling, sequence.draft->draw)) {
    return sequence.useful_draft_nodes(options.max_tree_nodes) + 1;
  }
  return sequence.draft->tree.size();
}

// Rows of all ready sequences. Each gets at least one; what is left is shared so that the smallest
// trees are whole first (max-min fair). While a prefill waits, guesses leave it a quarter of a
// step.
void Scheduler::Impl::PlanRunning(StepPlan* plan) {
  CollectReady(plan);
  const bool prefill = std::any_of(running.begin(), running.end(), [](const Sequence* sequence) {
    return sequence->phase == Phase::kPrefill;
  });
  std::sort(ready.begin(), ready.end(), [](const Ready& a, const Ready& b) {
    return a.rows_wanted != b.rows_wanted ? a.rows_wanted < b.rows_wanted
                                          : a.sequence->rank < b.sequence->rank;
  });
  const int32_t for_prefill = prefill ? options.max_step_tokens / 4 : 0;
  int32_t left = options.max_step_tokens - for_prefill;
  int32_t sequences_left = static_cast<int32_t>(ready.size());
  for (const auto& [rows_wanted, sequence] : ready) {
    const int32_t share = std::max(1, left / sequences_left);
    const int32_t room = blocks.SlotsWithin(*sequence) - sequence->kv_written;
    const int32_t rows = std::min({share, room, rows_wanted});
    SPECFABRIC_CHECK(blocks.Grow(sequence->kv_written + rows, sequence));
    PlanTree(rows, options.block_size, sequence, plan);
    in_flight.push_back(sequence);
    left -= sequence->planned_rows;
    --sequences_left;
  }
}

bool Scheduler::Impl::LetsPrefixGoAhead(int32_t rows, Sequence* sequence) {
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

void Scheduler::Impl::NoteFilling(int32_t rows, Sequence* sequence) {
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
    if (LetsPrefixGoAhead(rows, sequence)) continue;
    NoteFilling(rows, sequence);
    PlanPrefill(rows, options.block_size, sequence, plan);
    in_flight.push_back(sequence);
  }
}

base::Nanos Scheduler::Impl::EarliestDeadline() const {
  base::Nanos earliest = base::kForever;
  for (const Sequence* sequence : running) {
    if (sequence->wait.waiting()) earliest = std::min(earliest, sequence->wait.deadline());
  }
  return earliest;
}

}  // namespace specfabric::scheduler
