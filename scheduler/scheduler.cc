#include "scheduler/scheduler.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/draft_wait.h"
#include "scheduler/kv_blocks.h"
#include "scheduler/sequence.h"

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

absl::Status CheckTokens(const std::vector<base::TokenId>& tokens, int32_t vocabulary) {
  for (base::TokenId token : tokens) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, ": allowed are 0 to ", vocabulary - 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct Scheduler::Impl {
  explicit Impl(const SchedulerOptions& given) : options(Sound(given)), pool(options.kv_blocks) {}

  absl::Status CheckRequest(const SequenceRequest& request) const;
  int32_t BlocksNeeded(const Sequence& sequence) const {
    return (SlotsNeeded(sequence) + options.block_size - 1) / options.block_size;
  }
  Sequence* Find(base::SequenceId id) const {
    const auto it = sequences.find(id);
    return it == sequences.end() ? nullptr : it->second.get();
  }

  void Admit();
  void GiveUpLateDrafts(base::Nanos now);
  bool Ready(const Sequence& sequence) const {
    return sequence.phase == Phase::kRunning && !sequence.wait.waiting();
  }
  void PlanRunning(StepPlan* plan);
  void PlanPrefills(StepPlan* plan);
  base::Nanos EarliestDeadline() const;

  void StartRound(Sequence* sequence, base::Nanos now, std::vector<Event>* events);
  void End(base::SequenceId id, std::vector<Event>* events);
  void EndWithoutTokens(Sequence* sequence, FinishReason reason, std::vector<Event>* events);

  SchedulerOptions options;
  KvBlocks pool;
  std::unordered_map<base::SequenceId, std::unique_ptr<Sequence>> sequences;
  std::deque<Sequence*> waiting;   // in order of arrival
  std::vector<Sequence*> running;  // admitted, in order of admission
  std::vector<base::SequenceId> in_flight;
  bool step_in_flight = false;
  uint64_t step = 0;
  // Of all sequences of a coupling: where a new one's own estimate begins. Trees that come with the
  // draft's distributions take longer than those without.
  std::array<ReplyLatency, speculation::kCouplings> latencies;
  ReplyLatency& LatencyOf(const SequenceRequest& request) {
    return latencies[static_cast<int>(request.coupling)];
  }
  uint64_t draft_hits = 0, draft_misses = 0, late_drafts = 0;
};

absl::Status Scheduler::Impl::CheckRequest(const SequenceRequest& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t generated = static_cast<int64_t>(request.generated.size());
  if (prompt == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (request.max_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, ": must not be negative"));
  }
  const int64_t room = options.max_context - (request.max_tokens > 0 ? 1 : 0);
  if (prompt + generated > room) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and output have ", prompt + generated,
                                                   " tokens: this model takes at most ", room));
  }
  if (generated > 0 && generated >= request.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(generated, " tokens are generated already of ",
                                                   request.max_tokens, ": nothing is left to do"));
  }
  if (absl::Status status = CheckTokens(request.prompt, options.vocabulary); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckTokens(request.generated, options.vocabulary); !status.ok()) {
    return status;
  }
  std::vector<base::TokenId> ruled = request.rules.barred_ids;
  for (const base::LogitBias& bias : request.rules.bias) ruled.push_back(bias.token);
  return CheckTokens(ruled, options.vocabulary);
}

// First come, first served: a large sequence at the head is not overtaken by small ones.
void Scheduler::Impl::Admit() {
  while (!waiting.empty() && static_cast<int32_t>(running.size()) < options.max_sequences) {
    Sequence* sequence = waiting.front();
    std::optional<std::vector<int32_t>> blocks = pool.Allocate(BlocksNeeded(*sequence));
    if (!blocks) return;
    sequence->blocks = *std::move(blocks);
    sequence->phase = Phase::kPrefill;
    sequence->wait = DraftWait(LatencyOf(sequence->request));
    running.push_back(sequence);
    waiting.pop_front();
  }
}

void Scheduler::Impl::GiveUpLateDrafts(base::Nanos now) {
  for (Sequence* sequence : running) {
    if (!sequence->wait.waiting() || now < sequence->wait.deadline()) continue;
    LatencyOf(sequence->request).Observe(sequence->wait.OnMiss(now, options));
    ++draft_misses;
  }
}

// Rows of all ready sequences. Each gets at least one; what is left is shared so that the smallest
// trees are whole first (max-min fair). While a prefill waits, guesses leave it a quarter of a
// step.
void Scheduler::Impl::PlanRunning(StepPlan* plan) {
  std::vector<Sequence*> ready;
  bool prefill = false;
  for (Sequence* sequence : running) {
    if (Ready(*sequence)) ready.push_back(sequence);
    prefill |= sequence->phase == Phase::kPrefill;
  }
  const auto rows_wanted = [this](const Sequence* sequence) {
    if (!sequence->draft) return 1;
    // How many nodes were drawn may depend on the tokens drawn, and what is verified must not,
    // where their probability is weighed (verification.md section 3, Trimming).
    if (speculation::NeedsDraftRows(sequence->request.coupling, sequence->draft->draw)) {
      return sequence->useful_draft_nodes(options.max_tree_nodes) + 1;
    }
    return sequence->draft->tree.size();
  };
  std::stable_sort(ready.begin(), ready.end(), [&](const Sequence* a, const Sequence* b) {
    return rows_wanted(a) < rows_wanted(b);
  });
  const int32_t for_prefill = prefill ? options.max_step_tokens / 4 : 0;
  int32_t left = options.max_step_tokens - for_prefill;
  int32_t sequences_left = static_cast<int32_t>(ready.size());
  for (Sequence* sequence : ready) {
    const int32_t share = std::max(1, left / sequences_left);
    PlanTree(std::min(share, rows_wanted(sequence)), options.block_size, sequence, plan);
    left -= sequence->planned_rows;
    --sequences_left;
  }
}

void Scheduler::Impl::PlanPrefills(StepPlan* plan) {
  for (Sequence* sequence : running) {
    if (sequence->phase != Phase::kPrefill) continue;
    const int32_t left = options.max_step_tokens - plan->rows();
    const int32_t rows = std::min(left, sequence->committed_size() - sequence->kv_written);
    if (rows <= 0) return;
    PlanPrefill(rows, options.block_size, sequence, plan);
  }
}

base::Nanos Scheduler::Impl::EarliestDeadline() const {
  base::Nanos earliest = base::kForever;
  for (const Sequence* sequence : running) {
    if (sequence->wait.waiting()) earliest = std::min(earliest, sequence->wait.deadline());
  }
  return earliest;
}

void Scheduler::Impl::StartRound(Sequence* sequence, base::Nanos now, std::vector<Event>* events) {
  const int32_t nodes = sequence->useful_draft_nodes(options.max_tree_nodes);
  const bool useful = sequence->request.speculate && nodes > 0;
  const std::optional<base::Nanos> deadline = sequence->wait.StartRound(useful, now, options);
  if (!deadline) return;
  events->emplace_back(DraftWanted{.id = sequence->request.id,
                                   .round = sequence->wait.round(),
                                   .committed = sequence->committed_size(),
                                   .max_nodes = nodes,
                                   .deadline = *deadline});
}

void Scheduler::Impl::End(base::SequenceId id, std::vector<Event>* events) {
  Sequence* sequence = Find(id);
  SPECFABRIC_CHECK(sequence != nullptr && !sequence->in_flight);
  pool.Release(sequence->blocks);
  std::erase(waiting, sequence);
  std::erase(running, sequence);
  sequences.erase(id);
  events->emplace_back(SequenceEnded{.id = id});
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

Scheduler::Scheduler(const SchedulerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;

absl::Status Scheduler::Add(SequenceRequest request, base::Nanos /*now*/) {
  if (absl::Status status = impl_->CheckRequest(request); !status.ok()) return status;
  if (impl_->sequences.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("sequence ", request.id, " is in use"));
  }
  if (static_cast<int32_t>(impl_->waiting.size()) >= impl_->options.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", impl_->waiting.size(), " sequences wait"));
  }
  auto sequence = std::make_unique<Sequence>(std::move(request), impl_->options.max_context);
  const int32_t needed = impl_->BlocksNeeded(*sequence);
  if (needed > impl_->pool.total()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the sequence may need ", needed, " KV blocks: there are ",
                     impl_->pool.total(), "; ask for fewer max_tokens or a shorter prompt"));
  }
  impl_->waiting.push_back(sequence.get());
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
    ++impl_->late_drafts;
    return;
  }
  DraftWait& wait = sequence->wait;
  if (sequence->in_flight || sequence->draft || round != wait.round() || !wait.asked()) {
    ++impl_->late_drafts;
    if (const auto latency = wait.OnStaleReply(round, now))
      impl_->LatencyOf(sequence->request).Observe(*latency);
    return;
  }
  if (draft.tree.size() == 0 || draft.tree.tokens[0] != sequence->committed.back()) {
    wait.OnMiss(now, impl_->options);
    ++impl_->draft_misses;
    return;
  }
  impl_->LatencyOf(sequence->request).Observe(wait.OnReply(now));
  ++impl_->draft_hits;
  const int32_t useful = sequence->useful_draft_nodes(impl_->options.max_tree_nodes);
  sequence->draft = Prune(draft, useful, useful);
}

void Scheduler::OnNoDraft(base::SequenceId id, uint32_t round) {
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr || round != sequence->wait.round() || !sequence->wait.waiting()) return;
  sequence->wait.OnUnavailable();
  ++impl_->draft_misses;
}

std::variant<StepPlan, WaitUntil> Scheduler::Plan(base::Nanos now) {
  SPECFABRIC_CHECK(!impl_->step_in_flight);
  impl_->Admit();
  impl_->GiveUpLateDrafts(now);
  StepPlan plan;
  impl_->PlanRunning(&plan);
  impl_->PlanPrefills(&plan);
  if (plan.sequences.empty()) return WaitUntil{impl_->EarliestDeadline()};
  SPECFABRIC_CHECK(plan.rows() <= impl_->options.max_step_tokens);
  plan.step = ++impl_->step;
  impl_->step_in_flight = true;
  for (const PlanSequence& part : plan.sequences) {
    Sequence* sequence = impl_->Find(part.id);
    sequence->in_flight = true;
    sequence->wait.EndRound();
    impl_->in_flight.push_back(part.id);
  }
  return plan;
}

std::vector<Event> Scheduler::Commit(const StepResult& result, base::Nanos now) {
  SPECFABRIC_CHECK(impl_->step_in_flight && result.step == impl_->step);
  SPECFABRIC_CHECK(result.sequences.size() == impl_->in_flight.size());
  impl_->step_in_flight = false;
  std::vector<Event> events;
  const std::vector<base::SequenceId> in_flight = std::exchange(impl_->in_flight, {});
  for (size_t i = 0; i < in_flight.size(); ++i) {
    Sequence* sequence = impl_->Find(in_flight[i]);
    sequence->in_flight = false;
    if (sequence->cancelled) {
      impl_->EndWithoutTokens(sequence, FinishReason::kCancelled, &events);
      continue;
    }
    TokensEvent event = ApplyResult(result.sequences[i], impl_->options.block_size, sequence);
    const bool finished = event.finish.has_value();
    if (finished || !event.tokens.empty()) events.emplace_back(std::move(event));
    if (finished) {
      impl_->End(in_flight[i], &events);
    } else if (sequence->phase == Phase::kRunning) {
      impl_->StartRound(sequence, now, &events);
    }
  }
  return events;
}

std::vector<Event> Scheduler::Abort(base::Nanos /*now*/) {
  SPECFABRIC_CHECK(impl_->step_in_flight);
  impl_->step_in_flight = false;
  std::vector<Event> events;
  for (base::SequenceId id : std::exchange(impl_->in_flight, {})) {
    Sequence* sequence = impl_->Find(id);
    sequence->in_flight = false;
    impl_->EndWithoutTokens(
        sequence, sequence->cancelled ? FinishReason::kCancelled : FinishReason::kError, &events);
  }
  return events;
}

const std::vector<base::TokenId>* Scheduler::Committed(base::SequenceId id) const {
  const Sequence* sequence = impl_->Find(id);
  return sequence == nullptr ? nullptr : &sequence->committed;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.waiting = static_cast<int32_t>(impl_->waiting.size());
  stats.running = static_cast<int32_t>(impl_->running.size());
  stats.free_blocks = impl_->pool.free();
  stats.used_blocks = impl_->pool.used();
  stats.draft_hits = impl_->draft_hits;
  stats.draft_misses = impl_->draft_misses;
  stats.late_drafts = impl_->late_drafts;
  return stats;
}

}  // namespace specfabric::scheduler
