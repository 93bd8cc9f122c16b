// What a target's leader tells of its work: spans, metrics, warnings.

#include <utility>

#include "spdlog/spdlog.h"
#include "target/target_engine.h"

namespace specfabric::target {

void TargetEngine::TraceStep(const scheduler::StepPlan& plan, base::Nanos started,
                             base::Nanos planned, const StepTimes& times, base::Nanos ran) {
  trace::Recorder& recorder = *options_.recorder;
  const base::Nanos forward_ends = planned + times.forward, ended = base::Now();
  recorder.Record({.name = "step",
                   .begin = started,
                   .end = ended,
                   .attributes = {{"step", static_cast<int64_t>(plan.step)},
                                  {"rows", int64_t{plan.rows()}},
                                  {"sequences", static_cast<int64_t>(plan.sequences.size())}}});
  recorder.Record({.name = "plan", .begin = started, .end = planned});
  recorder.Record({.name = "forward", .begin = planned, .end = forward_ends});
  recorder.Record({.name = "verify", .begin = forward_ends, .end = forward_ends + times.verify});
  recorder.Record({.name = "commit", .begin = ran, .end = ended});
}

void TargetEngine::TraceSequence(const Client& client) {
  if (options_.recorder == nullptr || !client.trace.traced()) return;
  const base::Nanos now = base::Now();
  trace::Span span = {.name = "sequence",
                      .parent = client.trace,
                      .id = client.span,
                      .begin = client.submitted,
                      .end = now,
                      .attributes = {{"request", static_cast<int64_t>(client.request_id)},
                                     {"attempt", int64_t{client.attempt}},
                                     {"rounds", client.speculation.rounds},
                                     {"drafted", client.speculation.drafted},
                                     {"accepted", client.speculation.accepted},
                                     {"cached_tokens", int64_t{client.cached_tokens}}}};
  if (client.first_token != 0) {
    span.attributes.push_back(
        {"first_token_ms", 1e3 * base::ToSeconds(client.first_token - client.submitted)});
  }
  options_.recorder->Record(std::move(span));
}

void TargetEngine::CountDraftTokens(const scheduler::TokensEvent& event) {
  const scheduler::DraftTokenCounts &drafted = event.drafted_by, &accepted = event.accepted_by;
  const auto count = [](metrics::DrafterMetrics& of, int32_t drafted, int32_t accepted) {
    if (drafted == 0) return;
    of.drafted_tokens.Increment(drafted);
    of.accepted_tokens.Increment(accepted);
  };
  count(metrics_->ngram_lookup, drafted.by_ngram_lookup + drafted.also_ngram_lookup,
        accepted.by_ngram_lookup + accepted.also_ngram_lookup);
  for (size_t d = 0; d < drafter_metrics_.size(); ++d) {
    count(drafter_metrics_[d], drafted.by_drafter[d], accepted.by_drafter[d]);
    if (drafted.by_drafter[d] > 0) WatchFirstToken(d, accepted.by_drafter[d] > 0);
  }
}

void TargetEngine::WatchFirstToken(size_t drafter, bool accepted) {
  FirstTokenWatch& watch = first_tokens_[drafter];
  const bool suspect = watch.Observe(accepted);
  if (const auto acceptance = watch.acceptance()) {
    drafter_metrics_[drafter].first_accepted->Set(*acceptance);
  }
  if (!suspect) return;
  spdlog::warn(
      "drafter={}: the first token of its trees is accepted in less than {:.0f} % of rounds; it "
      "may "
      "be of another target{}",
      drafts_.names()[drafter], 100 * FirstTokenWatch::kSuspect,
      drafts_.reads_states(drafter) ? ", or read other layers (--state_layers)" : "");
}

void TargetEngine::UpdateDrafters() {
  for (size_t d = drafter_metrics_.size(); d < drafts_.names().size(); ++d) {
    drafter_metrics_.push_back(metrics_->AddDrafter(drafts_.names()[d]));
    first_tokens_.emplace_back();
  }
  for (size_t d = 0; d < drafter_metrics_.size(); ++d) {
    drafter_metrics_[d].share->Set(drafts_.shares()[d]);
  }
  const uint64_t scored = drafts_.scored_rounds();
  metrics_->scored_rounds.Increment(static_cast<double>(scored - reported_scored_));
  reported_scored_ = scored;
}

schemas::TargetLoad TargetEngine::Load() const {
  const scheduler::SchedulerStats stats = scheduler_.stats();
  const auto total = [](const metrics::Counter& counter) {
    return static_cast<int64_t>(counter.Value());
  };
  schemas::TargetLoad load;
  load.running = stats.running;
  load.waiting = stats.waiting;
  load.kv_blocks = stats.used_blocks + stats.free_blocks;
  load.kv_blocks_used = stats.used_blocks;
  load.block_size = options_.scheduler.block_size;
  load.drafts = total(metrics_->drafts);
  load.drafted = total(metrics_->drafted_tokens);
  load.accepted = total(metrics_->accepted_tokens);
  for (const metrics::Counter* counter : metrics_->accepted_at) {
    load.accepted_at.push_back(total(*counter));
  }
  return load;
}

void TargetEngine::UpdateGauges() {
  UpdateDrafters();
  const scheduler::SchedulerStats stats = scheduler_.stats();
  metrics_->running.Set(stats.running);
  metrics_->waiting.Set(stats.waiting);
  metrics_->kv_blocks_used.Set(stats.used_blocks);
  metrics_->kv_blocks_free.Set(stats.free_blocks);
  metrics_->kv_blocks_cached.Set(stats.cached_blocks);
  metrics_->draft_workers.Set(drafts_.workers());
  watch_.Update(drafts_.routes(), base::Now());
  const auto add = [](metrics::Counter& counter, uint64_t now, uint64_t before) {
    counter.Increment(static_cast<double>(now - before));
  };
  add(metrics_->draft_misses, stats.draft_misses, reported_.draft_misses);
  add(metrics_->draft_skips, stats.draft_skips, reported_.draft_skips);
  for (size_t mode = 0; mode < stats.modes.steps.of.size(); ++mode) {
    add(*metrics_->mode_steps[mode], stats.modes.steps.of[mode], reported_.modes.steps.of[mode]);
    metrics_->mode_yields[mode]->Set(stats.modes.yields.of[mode]);
  }
  add(metrics_->trial_steps, stats.modes.trial_steps, reported_.modes.trial_steps);
  add(metrics_->late_drafts, stats.late_drafts, reported_.late_drafts);
  metrics_->CountScheduling(stats.preemptions - reported_.preemptions,
                            stats.cache_queries - reported_.cache_queries,
                            stats.cache_hits - reported_.cache_hits);
  reported_ = stats;
  const DraftPoolStats& drafts = drafts_.stats();
  using metrics::Refusal;
  const DraftPoolStats& before = reported_drafts_;
  add(metrics_->refused_drafts(Refusal::kSampling), drafts.mismatched, before.mismatched);
  add(metrics_->refused_drafts(Refusal::kInvalid), drafts.invalid, before.invalid);
  add(metrics_->refused_drafts(Refusal::kNoSlot), drafts.refused_draft_probs,
      before.refused_draft_probs);
  add(metrics_->draft_probs, drafts.draft_probs, before.draft_probs);
  add(metrics_->draft_probs_bytes, drafts.draft_probs_bytes, before.draft_probs_bytes);
  reported_drafts_ = drafts;
  const StateStreamStats& states = states_.stats();
  add(metrics_->states_sent, states.sent, reported_states_.sent);
  add(metrics_->states_sent_bytes, states.bytes, reported_states_.bytes);
  add(metrics_->states_dropped, states.dropped, reported_states_.dropped);
  reported_states_ = states;
}

}  // namespace specfabric::target
