#include "target/target_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "spdlog/spdlog.h"
#include "target/verifier.h"

namespace specfabric::target {

using metrics::Span;
using schemas::Finish;

namespace {

constexpr base::Nanos kHeartbeatInterval = base::kSecond;
constexpr base::Nanos kNotFiniteInterval = 5 * base::kSecond;

Finish ToFinish(scheduler::FinishReason reason) {
  switch (reason) {
    case scheduler::FinishReason::kStop:
      return Finish::kStop;
    case scheduler::FinishReason::kLength:
      return Finish::kLength;
    case scheduler::FinishReason::kCancelled:
      return Finish::kCancelled;
    case scheduler::FinishReason::kError:
    case scheduler::FinishReason::kNotFinite:
      return Finish::kError;
  }
  return Finish::kError;
}

std::string NotFinite(int32_t at, int32_t prompt_size) {
  return at < prompt_size
             ? absl::StrCat("the model's logits are not finite at prompt token ", at + 1)
             : absl::StrCat("the model's logits are not finite at output token ",
                            at - prompt_size + 1);
}

std::string Names(uint32_t verification_methods) {
  std::vector<std::string> names;
  for (int c = 0; c < speculation::kVerificationMethods; ++c) {
    if (verification_methods & (1u << c))
      names.emplace_back(Name(static_cast<speculation::VerificationMethod>(c)));
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

TargetEngine::TargetEngine(const TargetEngineOptions& options, ExecuteStep execute,
                           metrics::TargetMetrics* metrics, TargetOutbox outbox)
    : options_(options),
      execute_(std::move(execute)),
      metrics_(metrics),
      outbox_(std::move(outbox)),
      scheduler_(options.scheduler),
      drafts_({.sessions = {options.incarnation, options.scheduler.vocabulary,
                            options.draft_probs_pools, options.draft_probs_bytes,
                            options.open_on_device},
               .router = options.router,
               .choice = options.drafter_choice},
              {outbox_.draft_request, outbox_.end_session}),
      watch_(options.draft_latency_warn, &metrics->draft_routes),
      states_(options.incarnation, options.states.hidden, outbox_.states),
      inbox_(kInboxSize),
      grammars_(options.load_grammars, options.scheduler.vocabulary, options.grammar_helpers) {
  scheduler_.SetDrafters(0);  // yet
  metrics_->max_sequences.Set(options.scheduler.max_sequences);
}

void TargetEngine::Ask(Asked what) {
  int now = asked_.load();
  while (now < what && !asked_.compare_exchange_weak(now, what)) {
  }
  inbox_.Wake();
}

void TargetEngine::Run() {
  Serve();
  finished_ = true;
}

void TargetEngine::Serve() {
  while (asked_.load() != kStop) {
    const base::Nanos start = base::Now();
    drafts_.Expire(start);
    SendHeartbeats(start);
    auto next = scheduler_.Plan(start);
    if (auto* plan = std::get_if<scheduler::StepPlan>(&next)) {
      RunStep(*plan, start);
      scheduler_.Recycle(std::move(*plan));
      TakeInput(0);
      continue;
    }
    if (asked_.load() == kDrain && clients_.empty()) return;
    base::Nanos until = std::min(std::get<scheduler::WaitUntil>(next).time, watch_.due());
    if (heartbeat_due_ || !clients_.empty()) until = std::min(until, next_heartbeat_);
    TakeInput(until);
  }
}

void TargetEngine::SendHeartbeats(base::Nanos now) {
  if (!heartbeat_due_ && clients_.empty()) return;
  if (now < next_heartbeat_) return;
  heartbeat_due_ = !clients_.empty();
  next_heartbeat_ = now + kHeartbeatInterval;
  const schemas::TokensBatch heartbeat{.load = Load()};
  for (const auto& [peer, role] : peers_) {
    // One that cannot take it has tokens on their way to it.
    if (role == schemas::Role::kGateway) outbox_.tokens(peer, heartbeat).IgnoreError();
  }
}

void TargetEngine::TakeInput(base::Nanos deadline) {
  for (TargetInput& input : inbox_.PopAll(deadline)) {
    std::visit([this](auto& i) { Handle(i); }, input);
  }
  tokens_.Send(outbox_.tokens);
  UpdateGauges();
}

void TargetEngine::Handle(const PeerUp& up) {
  peers_[up.peer] = up.hello.role;
  // A gateway that left because this thread had stalled waits for a sign that it goes on.
  if (up.hello.role == schemas::Role::kGateway) {
    outbox_.tokens(up.peer, {.load = Load()}).IgnoreError();
  }
  if (up.hello.role != schemas::Role::kDraft) return;
  drafts_.PeerUp(up.peer, up.hello);
  scheduler_.SetDrafters(drafts_.connected());
  watch_.Up(up.peer, up.address, up.hello.model);
  states_.PeerUp(up.peer, up.hello);
  KeepStates();
}

void TargetEngine::Handle(const PeerDown& down) {
  const auto it = peers_.find(down.peer);
  if (it == peers_.end()) return;
  const schemas::Role role = it->second;
  peers_.erase(it);
  if (role == schemas::Role::kDraft) {
    for (const NoDraft& none : drafts_.PeerDown(down.peer)) OnNoDraft(none);
    scheduler_.SetDrafters(drafts_.connected());
    states_.PeerDown(down.peer);
    KeepStates();
    return watch_.Down(down.peer);
  }
  absl::erase_if(compiling_, [&](const auto& one) { return one.first.peer == down.peer; });
  // Nobody is left to read what these sequences would say.
  std::vector<base::SequenceId> orphans;
  for (const auto& [id, client] : clients_) {
    if (client.peer == down.peer) orphans.push_back(id);
  }
  for (base::SequenceId id : orphans) {
    metrics_->cancelled.Increment();
    Dispatch(scheduler_.Cancel(id));
  }
}

void TargetEngine::Handle(PeerMessage& input) {
  const link::PeerId peer = input.peer;
  if (auto* submit = std::get_if<schemas::Submit>(&input.message)) {
    OnSubmit(peer, std::move(*submit));
  } else if (auto* cancel = std::get_if<schemas::Cancel>(&input.message)) {
    OnCancel(peer, *cancel);
  } else if (auto* reply = std::get_if<schemas::DraftReply>(&input.message)) {
    metrics_->CountDraftReply(static_cast<int>(reply->status));
    const base::SequenceId id = reply->sequence;
    OnDraftEvent(drafts_.OnReply(peer, std::move(*reply), Text(id), input.arrived), input.arrived);
  } else if (std::holds_alternative<schemas::Drain>(input.message)) {
    drafts_.PeerDraining(peer);
  } else {
    spdlog::warn("target peer={}: message of a kind targets do not take", peer);
  }
}

void TargetEngine::Handle(PeerDraftProbs& input) {
  const base::SequenceId id = input.tensor.fields.tag;
  OnDraftEvent(drafts_.OnDraftProbs(input.peer, std::move(input.tensor), Text(id), input.arrived),
               input.arrived);
}

void TargetEngine::Handle(const DraftProbsRefused& refused) {
  OnNoDraft(drafts_.OnDraftProbsRefused(refused.peer, refused.fields));
}

void TargetEngine::OnNoDraft(const std::optional<NoDraft>& none) {
  if (none) scheduler_.OnNoDraft(none->id, none->round);
}

void TargetEngine::OnDraftEvent(std::optional<DraftEvent> event, base::Nanos now) {
  if (!event) return;
  if (const auto* none = std::get_if<NoDraft>(&*event)) return OnNoDraft(*none);
  auto& arrived = std::get<DraftArrived>(*event);
  if (arrived.times || arrived.extra) PruneByGrammar(arrived.id, &arrived.draft);
  if (arrived.extra) {
    scheduler_.OnExtraDraft(arrived.id, arrived.round, std::move(arrived.draft));
  } else {
    scheduler_.OnDraft(arrived.id, arrived.round, std::move(arrived.draft), now);
  }
  if (arrived.times) ObserveDraft(arrived.id, *arrived.times);
}

// Where verification reads what draft tokens were drawn from, the distribution depends on their
// being there: they stay, and are not accepted.
void TargetEngine::PruneByGrammar(base::SequenceId id, speculation::Draft* draft) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  if (speculation::NeedsDraftRows(it->second.speculation.verification, draft->draw)) return;
  grammars_.Prune(id, draft);
}

absl::Span<const base::TokenId> TargetEngine::Text(base::SequenceId id) const {
  const std::vector<base::TokenId>* text = scheduler_.Committed(id);
  return text == nullptr ? absl::Span<const base::TokenId>() : absl::MakeConstSpan(*text);
}

void TargetEngine::ObserveDraft(base::SequenceId id, const DraftArrived::Times& times) {
  const auto it = clients_.find(id);
  if (it == clients_.end() || it->second.wanted_draft == 0) return;
  metrics_->ObserveSpan(Span::kDraftWait, base::Now() - it->second.wanted_draft);
  metrics_->ObserveSpan(Span::kDraftCompute, times.draft);
  metrics_->ObserveSpan(Span::kTransfer, times.round_trip - times.draft);
  const Client& client = it->second;
  if (options_.recorder != nullptr && client.trace.traced()) {
    options_.recorder->Record({.name = "draft_wait",
                               .parent = trace::Below(client.trace, client.span),
                               .id = trace::NewSpanId(),
                               .begin = client.wanted_draft,
                               .end = base::Now()});
  }
  it->second.wanted_draft = 0;
}

void TargetEngine::Refuse(const RequestKey& key, uint32_t attempt, Finish finish, std::string why) {
  schemas::Tokens reply;
  reply.request_id = key.request_id;
  reply.attempt = attempt;
  reply.finish = finish;
  reply.error = std::move(why);
  tokens_.Add(key.peer, std::move(reply));
}

void TargetEngine::OnSubmit(link::PeerId peer, schemas::Submit submit) {
  if (submit.sequence.grammar.empty()) return Admit(peer, std::move(submit), nullptr);
  const RequestKey key{peer, submit.request_id};
  const uint32_t attempt = submit.sequence.attempt;
  if (!compiling_.try_emplace(key, attempt).second) {
    return Refuse(key, attempt, Finish::kRejected, "a request with this id is running already");
  }
  base::Grammar grammar = submit.sequence.grammar;
  const auto done = [this, peer, submit = std::move(submit)](auto matcher) {
    inbox_.PushAlways(GrammarCompiled{peer, submit, std::move(matcher)});
  };
  grammars_.Compile(std::move(grammar), done);
}

void TargetEngine::Handle(GrammarCompiled& compiled) {
  const RequestKey key{compiled.peer, compiled.submit.request_id};
  const uint32_t attempt = compiled.submit.sequence.attempt;
  const auto waiting = compiling_.find(key);
  if (waiting == compiling_.end() || waiting->second != attempt) return;  // cancelled meanwhile
  compiling_.erase(waiting);
  if (!compiled.matcher.ok()) {
    return Refuse(key, attempt, Finish::kRejected, base::Message(compiled.matcher.status()));
  }
  Admit(compiled.peer, std::move(compiled.submit), &*compiled.matcher);
}

void TargetEngine::Admit(link::PeerId peer, schemas::Submit submit,
                         tokenizer::GrammarMatcher* grammar) {
  scheduler::SequenceRequest& sequence = submit.sequence;
  const RequestKey key{peer, submit.request_id};
  const uint32_t attempt = sequence.attempt;
  if (asked_.load() != kRun) {
    return Refuse(key, attempt, Finish::kDraining, "this target is draining");
  }
  speculation::VerificationMethod verification =
      submit.verification.value_or(options_.verification);
  if ((options_.verification_methods & (1u << static_cast<int>(verification))) == 0) {
    return Refuse(key, attempt, Finish::kRejected,
                  absl::StrCat("verification: ", Name(verification), " is not served; allowed are ",
                               Names(options_.verification_methods)));
  }
  sequence.sources = drafts_.SourcesOf(sequence.drafter);
  const scheduler::DraftSources sources = sequence.allowed_sources();
  const bool limits_drafts = sequence.limits_drafts();
  if (sequence.sampling.greedy()) {
    // What all of them verify is the arg-max, and shared noise allows any tree.
    verification = speculation::VerificationMethod::kCoupled;
  } else if (!submit.verification && options_.chooses_verification) {
    verification = scheduler_.ChooseVerification(options_.verification_methods,
                                                 sequence.sampling.temperature, sources);
  }
  const base::SequenceId id = next_sequence_++;
  const base::TraceContext trace = submit.trace;
  const uint64_t span = trace.traced() ? trace::NewSpanId() : 0;
  const DraftTerms terms = {sequence.sampling, static_cast<int32_t>(sequence.prompt.size()),
                            verification, attempt, trace::Below(trace, span)};
  if (sequences_.contains(key)) {
    return Refuse(key, attempt, Finish::kRejected, "a request with this id is running already");
  }
  sequence.id = id;
  sequence.verification = verification;
  if (grammar != nullptr) {
    absl::Status opened = grammars_.Open(id, std::move(*grammar), sequence.generated);
    if (!opened.ok()) return Refuse(key, attempt, Finish::kRejected, base::Message(opened));
  }
  absl::Status added = scheduler_.Add(std::move(sequence), base::Now());
  if (!added.ok()) {
    grammars_.Close(id);
    const bool full = absl::IsResourceExhausted(added);
    return Refuse(key, attempt, full ? Finish::kOverloaded : Finish::kRejected,
                  base::Message(added));
  }
  metrics_->prompt_tokens.Increment(terms.prompt_length);
  clients_[id] = Client{.peer = peer,
                        .request_id = key.request_id,
                        .attempt = attempt,
                        .prompt_size = terms.prompt_length,
                        .speculation = {.verification = verification},
                        .trace = trace,
                        .span = span,
                        .submitted = base::Now()};
  sequences_[key] = id;
  if (sources.drafters != 0) drafts_.Open(id, terms, sources.drafters, !limits_drafts);
}

void TargetEngine::OnCancel(link::PeerId peer, const schemas::Cancel& cancel) {
  const auto compiling = compiling_.find({peer, cancel.request_id});
  if (compiling != compiling_.end() && compiling->second == cancel.attempt) {
    compiling_.erase(compiling);
    return metrics_->cancelled.Increment();
  }
  const auto it = sequences_.find({peer, cancel.request_id});
  if (it == sequences_.end()) return;
  const auto client = clients_.find(it->second);
  if (client == clients_.end() || client->second.attempt != cancel.attempt) return;
  metrics_->cancelled.Increment();
  Dispatch(scheduler_.Cancel(it->second));
}

void TargetEngine::RunStep(const scheduler::StepPlan& plan, base::Nanos started) {
  const base::Nanos planned = base::Now();
  metrics_->ObserveSpan(Span::kPlan, planned - started);
  step_started_.store(planned, std::memory_order_relaxed);
  draft_probs_.assign(plan.sequences.size(), nullptr);
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    if (ReadsDraftProbs(plan.sequences[s]))
      draft_probs_[s] = drafts_.draft_probs(plan.sequences[s].id);
  }
  StepTimes times;
  const TokenMasks* const masks = grammars_.Begin(plan);
  const absl::Status executed =
      execute_(plan, {.draft_probs = draft_probs_, .masks = masks}, &times, &result_);
  if (masks != nullptr) {
    grammars_.End();
    if (executed.ok()) grammars_.Advance(&result_);
  }
  for (const scheduler::PlanSequence& sequence : plan.sequences) {
    drafts_.ReleaseDraftProbs(sequence.id);
  }
  for (base::SequenceId id : plan.preempted) drafts_.ReleaseDraftProbs(id);
  const base::Nanos ran = base::Now();
  step_started_.store(0, std::memory_order_relaxed);
  last_step_ended_.store(ran, std::memory_order_relaxed);
  drafts_.OnStep(ran - planned);
  if (!executed.ok()) {
    spdlog::error("step={} rows={} failed: {}", plan.step, plan.rows(), base::Message(executed));
    Dispatch(scheduler_.Abort());
    return tokens_.Send(outbox_.tokens);
  }
  metrics_->ObserveSpan(Span::kForward, times.forward);
  metrics_->ObserveSpan(Span::kVerify, times.verify);
  std::vector<scheduler::Event> events = scheduler_.Commit(&result_, ran);
  if (keeps_states_) SendStates(plan, ran);
  Dispatch(events);
  tokens_.Send(outbox_.tokens);
  metrics_->ObserveSpan(Span::kCommit, base::Now() - ran);
  if (options_.recorder != nullptr) TraceStep(plan, started, planned, times, ran);
  scheduler_.Recycle(std::move(events));
}

void TargetEngine::KeepStates() {
  if (!options_.states.keep) return;
  const absl::Status kept = options_.states.keep(states_.layers());
  keeps_states_ = kept.ok() && !states_.layers().empty();
  if (!kept.ok()) spdlog::error("hidden states are not kept: {}", base::Message(kept));
}

void TargetEngine::SendStates(const scheduler::StepPlan& plan, base::Nanos now) {
  const auto readers = [&](base::SequenceId id) {
    const absl::Span<const base::TokenId> text = Text(id);
    return text.empty() ? std::vector<PeerId>()
                        : drafts_.StateReadersOf(id, static_cast<int32_t>(text.size()), now);
  };
  states_.Send(plan, result_, options_.states.copy,
               {.of = readers, .left_out = [this](PeerId peer, base::SequenceId id) {
                  drafts_.StatesLeftOut(peer, id);
                }});
}

void TargetEngine::Dispatch(const std::vector<scheduler::Event>& events) {
  // Drafts first: they work while the rest is being sent.
  for (const scheduler::Event& event : events) {
    if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) {
      const base::Nanos now = base::Now();
      if (auto it = clients_.find(want->id); it != clients_.end()) it->second.wanted_draft = now;
      OnNoDraft(drafts_.Want(*want, Text(want->id), now));
    }
  }
  for (const scheduler::Event& event : events) {
    if (const auto* tokens = std::get_if<scheduler::TokensEvent>(&event)) {
      Emit(*tokens);
    } else if (const auto* ended = std::get_if<scheduler::SequenceEnded>(&event)) {
      OnEnded(ended->id);
    }
  }
}

void TargetEngine::Emit(const scheduler::TokensEvent& event) {
  const auto it = clients_.find(event.id);
  if (it == clients_.end()) return;
  Client& client = it->second;
  if (event.round) {
    schemas::Speculation& totals = client.speculation;
    ++totals.rounds;
    totals.drafted_rounds += event.drafted > 0;
    totals.drafted += event.drafted;
    totals.accepted += event.accepted;
    const size_t depth = static_cast<size_t>(event.accepted);
    if (totals.accepted_at.size() < depth) totals.accepted_at.resize(depth, 0);
    for (size_t i = 0; i < depth; ++i) ++totals.accepted_at[i];
    CountDraftTokens(event);
    metrics_->CountRound(static_cast<int>(client.speculation.verification), event.drafted,
                         event.accepted);
  }
  client.cached_tokens = std::max(client.cached_tokens, event.cached_tokens);
  if (client.first_token == 0 && !event.tokens.empty()) client.first_token = base::Now();
  metrics_->output_tokens.Increment(static_cast<double>(event.tokens.size()));
  schemas::Tokens message;
  static_cast<base::SequenceOutput&>(message) = static_cast<const base::SequenceOutput&>(event);
  message.request_id = client.request_id;
  message.attempt = client.attempt;
  message.finish = event.finish.has_value() ? ToFinish(*event.finish) : Finish::kNone;
  if (event.finish == scheduler::FinishReason::kNotFinite) {
    message.error = grammars_.Failure(event.id);
    if (message.error.empty()) {
      message.error = NotFinite(event.not_finite_at, client.prompt_size);
      LogNotFinite(event.id, client, message.error);
    }
  } else if (message.finish == Finish::kError) {
    message.error = "the step failed; see the target's log";
  }
  message.speculation = client.speculation;
  message.cached_tokens = client.cached_tokens;
  tokens_.Add(client.peer, std::move(message));
}

// A client may send one such request after the other: some lines a minute tell as much as all.
void TargetEngine::LogNotFinite(base::SequenceId id, const Client& client,
                                const std::string& what) {
  metrics_->not_finite.Increment();
  const base::Nanos now = base::Now();
  if (now < next_not_finite_line_) {
    ++not_finite_unsaid_;
    return;
  }
  next_not_finite_line_ = now + kNotFiniteInterval;
  const std::string more =
      not_finite_unsaid_ == 0
          ? ""
          : absl::StrCat("; ", std::exchange(not_finite_unsaid_, 0), " more since the last line");
  spdlog::error("target peer={} request={} sequence={}: {}: the request ends{}", client.peer,
                client.request_id, id, what, more);
}

void TargetEngine::OnEnded(base::SequenceId id) {
  drafts_.Ended(id);
  grammars_.Close(id);
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  TraceSequence(it->second);
  sequences_.erase({it->second.peer, it->second.request_id});
  clients_.erase(it);
}

}  // namespace specfabric::target
