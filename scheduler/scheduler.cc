#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/scheduler_impl.h"
#include "speculation/merge.h"

namespace specfabric::scheduler {
namespace {

constexpr size_t kLearnedTrees = 32;  // trees of a step that are learned from, about

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

Scheduler::Impl::Impl(const SchedulerOptions& given) : options(Sound(given)), blocks(options) {}

StepPlan Scheduler::Impl::EmptyPlan() {
  StepPlan plan = std::exchange(spare_plan, {});
  const size_t rows = options.max_step_tokens;
  plan.tokens.reserve(rows);
  plan.positions.reserve(rows);
  plan.parents.reserve(rows);
  plan.ancestors.reserve(rows);
  plan.logit_rows.reserve(rows);
  plan.score_tokens.reserve(rows);
  plan.moves.reserve(rows);
  plan.sequences.reserve(options.max_sequences);
  plan.blocks.reserve(blocks.pool.total());  // more where many are shared
  return plan;
}

void Scheduler::Impl::End(base::SequenceId id, std::vector<Event>* events) {
  Sequence* sequence = Find(id);
  SPECFABRIC_CHECK(sequence != nullptr && !sequence->in_flight);
  blocks.Drop(sequence);
  if (sequence->phase == Phase::kWaiting) {
    waiting.Remove(sequence);
  } else {
    std::erase(running, sequence);
  }
  shares.Leave(sequence->request.tenant);
  sequences.erase(id);
  events->emplace_back(SequenceEnded{.id = id});
}

// After its part of a step; false if it is over, or has no round to start yet.
bool Scheduler::Impl::Continues(Sequence* sequence, std::vector<Event>* events) {
  if (sequence->finish == FinishReason::kNotFinite) {
    blocks.Forget(sequence);
  } else {
    blocks.Publish(sequence);
  }
  if (sequence->finish) {
    End(sequence->request.id, events);
    return false;
  }
  CatchUp(sequence);
  if (sequence->phase != Phase::kRunning) return false;
  blocks.Trim(sequence);
  return true;
}

void Scheduler::Impl::EndWithoutTokens(Sequence* sequence, FinishReason reason,
                                       std::vector<Event>* events) {
  const base::SequenceId id = sequence->request.id;
  TokensEvent event;
  event.id = id;
  event.first_index = sequence->output_size();
  event.finish = reason;
  events->emplace_back(std::move(event));
  End(id, events);
}

// Every owner of a block is one running sequence, and every table says the same of its blocks as
// the pool does.
void Scheduler::Impl::Check() const {
  blocks.pool.Check();
  shares.Check();
  SPECFABRIC_CHECK(sequences.size() == waiting.size() + running.size());
  std::vector<int32_t> owners(blocks.pool.total(), 0);
  for (const auto& [id, sequence] : sequences) {
    SPECFABRIC_CHECK(sequence->phase != Phase::kWaiting || sequence->blocks.empty());
  }
  for (const Sequence* sequence : running) {
    SPECFABRIC_CHECK(sequence->published * options.block_size <= sequence->settled);
    SPECFABRIC_CHECK(sequence->settled <= sequence->kv_written);
    for (size_t i = 0; i < sequence->blocks.size(); ++i) {
      ++owners[sequence->blocks[i]];
      const bool published = blocks.pool.published(sequence->blocks[i]);
      SPECFABRIC_CHECK(published == (i < static_cast<size_t>(sequence->published)));
    }
  }
  for (int32_t i = 0; i < blocks.pool.total(); ++i) {
    SPECFABRIC_CHECK(owners[i] == blocks.pool.owners(i));
  }
}

Scheduler::Scheduler(const SchedulerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;

absl::Status Scheduler::Add(SequenceRequest request, base::Nanos now) {
  if (absl::Status status = impl_->CheckRequest(request); !status.ok()) return status;
  if (impl_->sequences.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("sequence ", request.id, " is in use"));
  }
  if (impl_->waiting.size() >= impl_->options.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", impl_->waiting.size(), " sequences wait"));
  }
  auto sequence = std::make_unique<Sequence>(std::move(request), impl_->options.max_context);
  const int32_t needed = impl_->blocks.BlocksFor(SlotsNeeded(*sequence));
  if (needed > impl_->blocks.pool.total()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sequence may need ", needed, " KV blocks: there are ",
                     impl_->blocks.pool.total(), "; ask for fewer max_tokens or a shorter prompt"));
  }
  const base::Nanos ahead = sequence->request.priority * impl_->options.priority_ageing;
  sequence->queue_order = {.time = now - ahead, .arrival = ++impl_->arrivals};
  impl_->waiting.Add(sequence.get());
  impl_->sequences.emplace(sequence->request.id, std::move(sequence));
  return absl::OkStatus();
}

std::vector<Event> Scheduler::Cancel(base::SequenceId id) {
  std::vector<Event> events;
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr) return events;
  if (sequence->in_flight) {
    sequence->cancelled = true;
  } else {
    impl_->EndWithoutTokens(sequence, FinishReason::kCancelled, &events);
  }
  return events;
}

void Scheduler::OnDraft(base::SequenceId id, uint32_t round, speculation::Draft draft,
                        base::Nanos now) {
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr) {
    ++impl_->counted.late_drafts;
    return;
  }
  DraftWait& wait = sequence->wait;
  GoodputControl& control = impl_->control;
  const speculation::VerificationMethod verification = sequence->request.verification;
  const bool stale =
      sequence->in_flight || sequence->answered || round != wait.round() || !wait.asked();
  if (!stale && (draft.tree.size() == 0 || draft.tree.tokens[0] != sequence->committed.back())) {
    wait.OnMiss(now, impl_->options.misses);
    ++impl_->counted.draft_misses;
    return;
  }
  const std::optional<base::Nanos> latency =
      stale ? wait.OnStaleReply(round, now) : wait.OnReply(now);
  impl_->counted.late_drafts += stale;
  impl_->counted.draft_hits += !stale;
  if (!latency || draft.tree.size() == 0) return;
  // Of one that comes too late there is something to learn too; of how long one took that had more
  // to read than a round's tokens, the prompt above all, there is not.
  if (std::exchange(sequence->had_reply, true) && wait.CaughtUp(round)) {
    control.OnReply(verification, wait.order(), draft.tree, *latency);
  }
  impl_->TakeDraft(std::move(draft), stale, sequence);
}

void Scheduler::OnExtraDraft(base::SequenceId id, uint32_t round, speculation::Draft draft) {
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr || sequence->in_flight || round != sequence->wait.round() ||
      !sequence->wait.asked() || draft.tree.size() == 0 ||
      draft.tree.tokens[0] != sequence->committed.back() ||
      !speculation::Merges(sequence->request.verification)) {
    return;
  }
  impl_->AddDraft(std::move(draft), sequence);
}

void Scheduler::OnNoDraft(base::SequenceId id, uint32_t round) {
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr || round != sequence->wait.round() || !sequence->wait.waiting()) return;
  sequence->wait.OnUnavailable();
  ++impl_->counted.draft_misses;
  impl_->hold_until = 0;
}

std::variant<StepPlan, WaitUntil> Scheduler::Plan(base::Nanos now) {
  SPECFABRIC_CHECK(!impl_->step_in_flight);
  impl_->Admit();
  impl_->GiveUpLateDrafts(now);
  impl_->CountPrefill();
  if (const auto until = impl_->HoldUntil(now)) return WaitUntil{*until};
  impl_->hold_until = 0;
  StepPlan plan = impl_->EmptyPlan();
  impl_->PlanRunning(now, &plan);
  impl_->PlanPrefills(&plan);
  if (plan.sequences.empty()) {
    SPECFABRIC_CHECK(plan.preempted.empty());
    impl_->spare_plan = std::move(plan);
    return WaitUntil{impl_->EarliestDeadline()};
  }
  SPECFABRIC_CHECK(plan.rows() <= impl_->options.max_step_tokens);
  plan.step = ++impl_->step;
  impl_->step_in_flight = true;
  impl_->step_started = now;
  impl_->step_context = 0;
  for (const PlanSequence& part : plan.sequences) {
    impl_->step_context += part.kv_len + part.row_count;
  }
  impl_->step_rows = plan.rows();
  for (Sequence* sequence : impl_->in_flight) {
    sequence->in_flight = true;
    sequence->wait.EndRound();
  }
  return plan;
}

std::vector<Event> Scheduler::Commit(StepResult result, base::Nanos now) {
  SPECFABRIC_CHECK(impl_->step_in_flight && result.step == impl_->step);
  SPECFABRIC_CHECK(result.sequences.size() == impl_->in_flight.size());
  impl_->step_in_flight = false;
  impl_->control.OnStep(impl_->step_rows, impl_->step_context, now - impl_->step_started);
  impl_->orders.fill(std::nullopt);
  impl_->ready.clear();
  std::vector<Event> events = std::exchange(impl_->spare_events, {});
  events.reserve(2 * impl_->in_flight.size());
  // Some of many trees teach as much about drafts as all; others in each step.
  const size_t teachers = 1 + impl_->in_flight.size() / kLearnedTrees;
  for (size_t i = 0; i < impl_->in_flight.size(); ++i) {
    Sequence* sequence = impl_->in_flight[i];
    if (i + kPrefetchSequence < impl_->in_flight.size())
      impl_->in_flight[i + kPrefetchSequence]->Prefetch();
    if (i + kPrefetchContents < impl_->in_flight.size())
      impl_->in_flight[i + kPrefetchContents]->PrefetchForCommit();
    sequence->in_flight = false;
    if (sequence->cancelled) {
      impl_->EndWithoutTokens(sequence, FinishReason::kCancelled, &events);
      continue;
    }
    if (sequence->planned.tree.size() > 1 && i % teachers == impl_->step % teachers) {
      impl_->control.OnVerified(sequence->request.verification, sequence->planned,
                                result.sequences[i].accepted.path);
    }
    auto& event = std::get<TokensEvent>(events.emplace_back(std::in_place_type<TokensEvent>));
    ApplyResult(&result.sequences[i], impl_->options.block_size, sequence, &event);
    if (sequence->first_token == 0 && !event.tokens.empty()) sequence->first_token = now;
    impl_->shares.Charge(sequence->request.tenant,
                         TenantShares::kOutputWeight * static_cast<int64_t>(event.tokens.size()));
    sequence->finish = event.finish;
    if (!sequence->finish && event.tokens.empty()) events.pop_back();
    impl_->blocks.Prefetch(sequence);
    impl_->ready.push_back(sequence);
  }
  impl_->in_flight.clear();
  std::erase_if(impl_->ready, [&](Sequence* s) { return !impl_->Continues(s, &events); });
  impl_->CountPrefill();
  for (Sequence* sequence : impl_->ready) impl_->StartRound(sequence, now, &events);
  return events;
}

std::vector<Event> Scheduler::Abort(base::Nanos /*now*/) {
  SPECFABRIC_CHECK(impl_->step_in_flight);
  impl_->step_in_flight = false;
  std::vector<Event> events;
  for (Sequence* sequence : std::exchange(impl_->in_flight, {})) {
    sequence->in_flight = false;
    impl_->EndWithoutTokens(
        sequence, sequence->cancelled ? FinishReason::kCancelled : FinishReason::kError, &events);
  }
  return events;
}

void Scheduler::Recycle(StepPlan plan) {
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
  impl_->spare_plan = std::move(plan);
}

void Scheduler::Recycle(std::vector<Event> events) {
  events.clear();
  if (events.capacity() > impl_->spare_events.capacity()) impl_->spare_events = std::move(events);
}

const std::vector<base::TokenId>* Scheduler::Committed(base::SequenceId id) const {
  const Sequence* sequence = impl_->Find(id);
  return sequence == nullptr ? nullptr : &sequence->committed;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = impl_->counted;
  stats.waiting = impl_->waiting.size();
  stats.running = static_cast<int32_t>(impl_->running.size());
  stats.free_blocks = impl_->blocks.pool.available();
  stats.used_blocks = impl_->blocks.pool.used();
  stats.cached_blocks = impl_->blocks.pool.cached();
  return stats;
}

const std::vector<int32_t>* Scheduler::Blocks(base::SequenceId id) const {
  const Sequence* sequence = impl_->Find(id);
  return sequence == nullptr ? nullptr : &sequence->blocks;
}

void Scheduler::Check() const { impl_->Check(); }

}  // namespace specfabric::scheduler
