#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/kv/sequence_blocks.h"
#include "scheduler/policy/admission.h"
#include "scheduler/policy/draft_rounds.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/pacing.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/policy/step_planner.h"
#include "scheduler/step_in_flight.h"

namespace specfabric::scheduler {
namespace {

SchedulerOptions Sound(SchedulerOptions options) {
  SPECFABRIC_CHECK(options.kv_blocks > 0 && options.block_size > 0 && options.vocabulary > 0);
  SPECFABRIC_CHECK(options.max_context > 0 && options.max_sequences > 0);
  SPECFABRIC_CHECK(options.max_step_tokens > 0 && options.max_waiting >= 0);
  SPECFABRIC_CHECK(options.min_draft_wait <= options.max_draft_wait);
  // Every running sequence has room for its row in every step.
  options.max_sequences = std::min(options.max_sequences, options.max_step_tokens);
  options.max_tree_nodes = std::clamp(options.max_tree_nodes, 1, speculation::kMaxVerifyNodes);
  return options;
}

}  // namespace

// The parts, each with its own state. In this order: a part is given those before it.
struct Scheduler::Impl {
  explicit Impl(const SchedulerOptions& given) : options(Sound(given)), control(options.profile) {}

  const SchedulerOptions options;
  SequenceBlocks blocks{options};
  GoodputControl control;
  Admission admission{options, &blocks};
  DraftRounds rounds{options, &control};
  MethodChoice methods;
  Pacing pacing{options, control};
  StepPlanner planner{options, control, &blocks, &admission};
  StepInFlight step{options, &blocks, &admission, &rounds, &control, &methods};
};

Scheduler::Scheduler(const SchedulerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;

speculation::VerificationMethod Scheduler::ChooseVerification(uint32_t allowed, float temperature,
                                                              const DraftSources& sources) {
  if (!impl_->rounds.Asks(sources)) return speculation::VerificationMethod::kCoupled;
  const auto running = static_cast<int32_t>(impl_->admission.running().size());
  return impl_->methods.Choose(allowed, temperature, running, impl_->control.step_time());
}

absl::Status Scheduler::Add(SequenceRequest request, base::Nanos now) {
  return impl_->admission.Add(std::move(request), now);
}

std::vector<Event> Scheduler::Cancel(base::SequenceId id) {
  std::vector<Event> events;
  Sequence* sequence = impl_->admission.Find(id);
  if (sequence == nullptr) return events;
  if (sequence->in_flight) {
    sequence->cancelled = true;
  } else {
    impl_->admission.EndWithoutTokens(sequence, FinishReason::kCancelled, &events);
  }
  return events;
}

void Scheduler::OnDraft(base::SequenceId id, uint32_t round, speculation::Draft draft,
                        base::Nanos now) {
  impl_->rounds.OnDraft(round, std::move(draft), now, impl_->admission.Find(id));
}

void Scheduler::OnExtraDraft(base::SequenceId id, uint32_t round, speculation::Draft draft) {
  impl_->rounds.OnExtraDraft(round, std::move(draft), impl_->admission.Find(id));
}

void Scheduler::SetDrafters(uint32_t connected) { impl_->rounds.SetDrafters(connected); }

void Scheduler::OnNoDraft(base::SequenceId id, uint32_t round) {
  if (impl_->rounds.OnNoDraft(round, impl_->admission.Find(id))) impl_->pacing.Reconsider();
}

std::variant<StepPlan, WaitUntil> Scheduler::Plan(base::Nanos now) {
  SPECFABRIC_CHECK(!impl_->step.any());
  impl_->admission.Admit();
  const std::vector<Sequence*>& running = impl_->admission.running();
  impl_->rounds.GiveUpLate(running, now);
  const PrefillLoad prefill = CountPrefill(running, impl_->options.max_step_tokens);
  const StepStart start = impl_->pacing.Decide(running, prefill, impl_->planner.cohorts(), now);
  if (start.wait_until) return WaitUntil{*start.wait_until};
  if (start.skip_drafts) impl_->rounds.Skip(running, now);
  StepPlan plan = impl_->planner.Plan(prefill, now);
  if (plan.sequences.empty()) {
    SPECFABRIC_CHECK(plan.preempted.empty());
    impl_->planner.Recycle(std::move(plan));
    return WaitUntil{EarliestDeadline(running)};
  }
  impl_->step.Begin(impl_->planner.planned(), now, &plan);
  return plan;
}

std::vector<Event> Scheduler::Commit(StepResult* result, base::Nanos now) {
  return impl_->step.Commit(result, now);
}

std::vector<Event> Scheduler::Abort() { return impl_->step.Abort(); }

void Scheduler::Recycle(StepPlan plan) { impl_->planner.Recycle(std::move(plan)); }

void Scheduler::Recycle(std::vector<Event> events) { impl_->step.Recycle(std::move(events)); }

const std::vector<base::TokenId>* Scheduler::Committed(base::SequenceId id) const {
  const Sequence* sequence = impl_->admission.Find(id);
  return sequence == nullptr ? nullptr : &sequence->committed;
}

SchedulerStats Scheduler::stats() const {
  const KvBlocks& pool = impl_->blocks.pool();
  const DraftCounts& drafts = impl_->rounds.counts();
  return {.waiting = impl_->admission.waiting(),
          .running = static_cast<int32_t>(impl_->admission.running().size()),
          .free_blocks = pool.available(),
          .used_blocks = pool.used(),
          .cached_blocks = pool.cached(),
          .draft_hits = drafts.hits,
          .draft_misses = drafts.misses,
          .draft_skips = drafts.skips,
          .late_drafts = drafts.late,
          .modes = impl_->control.mode_counts(),
          .preemptions = impl_->admission.preemptions(),
          .cache_queries = impl_->blocks.cache_queries(),
          .cache_hits = impl_->blocks.cache_hits()};
}

const std::vector<int32_t>* Scheduler::Blocks(base::SequenceId id) const {
  const Sequence* sequence = impl_->admission.Find(id);
  return sequence == nullptr ? nullptr : &sequence->blocks;
}

void Scheduler::Check() const { impl_->admission.Check(); }

}  // namespace specfabric::scheduler
