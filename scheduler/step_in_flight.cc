#include "scheduler/step_in_flight.h"

#include <cstddef>
#include <utility>
#include <variant>

#include "base/check.h"
#include "scheduler/apply_result.h"
#include "scheduler/policy/prefill_load.h"

namespace specfabric::scheduler {
namespace {

constexpr size_t kLearnedTrees = 32;  // trees of a step that are learned from, about

}  // namespace

void StepInFlight::Survey(const StepPlan& plan) {
  int32_t running = 0;
  bool asks = false, reading = false;
  drafting_ = false;
  for (const Sequence* sequence : admission_->running()) {
    if (sequence->phase != Phase::kRunning) continue;
    ++running;
    asks |= rounds_->Asks(sequence->sources);
    reading |= sequence->drafter_reads_prompt();
    drafting_ |= sequence->wait.unanswered();
  }
  StepShape shape = {.all_rows = plan.rows()};
  int32_t decoding = 0;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const PlanSequence& part = plan.sequences[i];
    shape.all_context += part.kv_len + part.row_count;
    if (sequences_[i]->phase != Phase::kRunning) continue;
    ++decoding;
    shape.rows += part.row_count;
    shape.context += part.kv_len + part.row_count;
  }
  rows_ = shape.all_rows;
  context_ = shape.all_context;
  if (decoding > 0) shape.share = static_cast<double>(decoding) / running;
  mode_step_ = control_->Expect(shape);
  mode_step_.reading = reading;
  // Else it tells nothing of drafters.
  if (asks) mode_step_.running = running;
}

void StepInFlight::ReportModes(base::Nanos now) {
  if (ended_ != 0 && mode_step_.running > 0) {
    mode_step_.elapsed = now - ended_;
    control_->OnModeStep(mode_step_);
  }
  ended_ = now;
}

void StepInFlight::Begin(absl::Span<Sequence* const> sequences, base::Nanos now, StepPlan* plan) {
  SPECFABRIC_CHECK(!any_ && sequences.size() == plan->sequences.size());
  any_ = true;
  plan->step = ++number_;
  started_ = now;
  sequences_.assign(sequences.begin(), sequences.end());
  Survey(*plan);
  for (Sequence* sequence : sequences_) {
    sequence->in_flight = true;
    sequence->wait.EndRound();
  }
}

std::vector<Event> StepInFlight::Commit(StepResult* result, base::Nanos now) {
  SPECFABRIC_CHECK(any_ && result->step == number_);
  SPECFABRIC_CHECK(result->sequences.size() == sequences_.size());
  any_ = false;
  control_->OnStep(rows_, context_, now - started_,
                   {.read_prompts = mode_step_.reading, .draft = drafting_});
  ReportModes(now);
  starting_.clear();
  std::vector<Event> events = std::exchange(spare_events_, {});
  events.reserve(2 * sequences_.size());
  // Some of many trees teach as much about drafts as all: one in `stride`, others in each step.
  const size_t stride = 1 + sequences_.size() / kLearnedTrees;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Sequence* sequence = sequences_[i];
    if (i + kPrefetchSequence < sequences_.size()) sequences_[i + kPrefetchSequence]->Prefetch();
    if (i + kPrefetchContents < sequences_.size()) {
      sequences_[i + kPrefetchContents]->PrefetchForCommit();
    }
    sequence->in_flight = false;
    if (sequence->cancelled) {
      admission_->EndWithoutTokens(sequence, FinishReason::kCancelled, &events);
      continue;
    }
    if (sequence->planned.tree.size() > 1 && i % stride == number_ % stride) {
      control_->OnVerified(sequence->round_kind(), sequence->planned,
                           result->sequences[i].accepted.path);
    }
    Apply(now, sequence, &result->sequences[i], &events);
    blocks_->Prefetch(sequence);
    starting_.push_back(sequence);
  }
  sequences_.clear();
  std::erase_if(starting_, [&](Sequence* s) { return !Continues(s, &events); });
  if (admission_->running().empty()) ended_ = 0;
  const PrefillLoad prefill = CountPrefill(admission_->running(), options_.max_step_tokens);
  rounds_->StartRounds(starting_, admission_->running(), prefill, now, &events);
  return events;
}

std::vector<base::TokenId> StepInFlight::SpareTokens() {
  if (spare_tokens_.empty()) return {};
  std::vector<base::TokenId> tokens = std::move(spare_tokens_.back());
  spare_tokens_.pop_back();
  return tokens;
}

void StepInFlight::KeepTokens(std::vector<base::TokenId> tokens) {
  if (tokens.capacity() == 0 ||
      spare_tokens_.size() >= static_cast<size_t>(options_.max_sequences)) {
    return;
  }
  spare_tokens_.reserve(options_.max_sequences);
  tokens.clear();
  spare_tokens_.push_back(std::move(tokens));
}

void StepInFlight::Apply(base::Nanos now, Sequence* sequence, SequenceResult* result,
                         std::vector<Event>* events) {
  auto& event = std::get<TokensEvent>(events->emplace_back(std::in_place_type<TokensEvent>));
  if (!result->accepted.tokens.empty()) event.tokens = SpareTokens();
  ApplyResult(options_.block_size, sequence, result, &event);
  sequence->forced.swap(result->forced);
  if (sequence->first_token == 0 && !event.tokens.empty()) sequence->first_token = now;
  if (event.round) {
    MethodRounds& rounds = sequence->method_rounds;
    ++rounds.rounds;
    rounds.tokens += static_cast<int64_t>(event.tokens.size());
    rounds.rows += sequence->planned.tree.size();
    rounds.waited += sequence->wait.waited();
  }
  admission_->ChargeOutput(*sequence, static_cast<int64_t>(event.tokens.size()));
  sequence->finish = event.finish;
  if (!sequence->finish && event.tokens.empty()) events->pop_back();
}

// After its result was applied. False if the sequence is over, or still prefills.
bool StepInFlight::Continues(Sequence* sequence, std::vector<Event>* events) {
  if (sequence->finish == FinishReason::kNotFinite) {
    blocks_->Forget(sequence);
  } else {
    blocks_->Publish(sequence);
  }
  if (sequence->finish) {
    const SequenceRequest& request = sequence->request;
    if (!sequence->limited && !request.sampling.greedy() && rounds_->Asks(sequence->sources)) {
      methods_->OnEnd(request.verification, request.sampling.temperature,
                      static_cast<int32_t>(admission_->running().size()) - 1,
                      sequence->method_rounds);
    }
    admission_->End(sequence, events);
    return false;
  }
  rounds_->CatchUp(sequence);
  if (sequence->phase != Phase::kRunning) return false;
  blocks_->Trim(sequence);
  return true;
}

std::vector<Event> StepInFlight::Abort() {
  SPECFABRIC_CHECK(any_);
  any_ = false;
  std::vector<Event> events;
  for (Sequence* sequence : std::exchange(sequences_, {})) {
    sequence->in_flight = false;
    admission_->EndWithoutTokens(
        sequence, sequence->cancelled ? FinishReason::kCancelled : FinishReason::kError, &events);
  }
  return events;
}

void StepInFlight::Recycle(std::vector<Event> events) {
  for (Event& event : events) {
    auto* tokens = std::get_if<TokensEvent>(&event);
    if (tokens != nullptr) KeepTokens(std::move(tokens->tokens));
  }
  events.clear();
  if (events.capacity() > spare_events_.capacity()) spare_events_ = std::move(events);
}

}  // namespace specfabric::scheduler
