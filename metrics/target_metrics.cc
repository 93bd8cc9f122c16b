#include "metrics/target_metrics.h"

#include <algorithm>
#include <cstddef>

#include "metrics/vllm_labels.h"

namespace specfabric::metrics {
namespace {

constexpr std::array<const char*, kSpans> kSpanNames = {
    "draft_wait", "draft_compute", "transfer", "plan", "forward", "verify", "commit"};
constexpr const char* kTokensHelp = "Prompt tokens prefilled, output tokens emitted";
constexpr const char* kExactnessHelp =
    "1 for the guarantee of requests that name no verification method: `token`, `distribution` or "
    "`none`";

DrafterMetrics DrafterSeries(Registry& registry, const std::string& drafter) {
  const Labels labels = {{"drafter", drafter}};
  return {
      .drafted_tokens =
          registry.AddCounter("specfabric_drafter_drafted_tokens_total",
                              "Draft tokens verified, by proposal source: a draft model by its "
                              "name, or `ngram_lookup`; a token proposed by both counts for both",
                              labels),
      .accepted_tokens = registry.AddCounter("specfabric_drafter_accepted_tokens_total",
                                             "Draft tokens accepted, by proposal source", labels),
      .share = nullptr,
      .first_accepted = nullptr};
}

}  // namespace

TargetMetrics::TargetMetrics(Registry& registry, const std::string& model_name, int positions)
    : running(registry.AddGauge("specfabric_target_running_sequences", "Sequences in the batch")),
      max_sequences(registry.AddGauge("specfabric_target_max_sequences",
                                      "Sequences that the batch has room for (`--max_sequences`)")),
      waiting(registry.AddGauge("specfabric_target_waiting_sequences", "Sequences in the queue")),
      kv_blocks_used(registry.AddGauge("specfabric_target_kv_blocks_used", "KV blocks in use")),
      kv_blocks_free(registry.AddGauge("specfabric_target_kv_blocks_free", "KV blocks free")),
      kv_blocks_cached(registry.AddGauge("specfabric_target_kv_blocks_cached",
                                         "Free KV blocks kept for their content")),
      kv_tokens(registry.AddGauge("specfabric_target_kv_tokens",
                                  "Tokens that the KV cache has room for")),
      draft_workers(registry.AddGauge("specfabric_target_draft_workers",
                                      "Draft workers connected and taking requests")),
      prompt_tokens(
          registry.AddCounter("specfabric_tokens_total", kTokensHelp, {{"kind", "prompt"}})),
      output_tokens(
          registry.AddCounter("specfabric_tokens_total", kTokensHelp, {{"kind", "output"}})),
      draft_misses(registry.AddCounter("specfabric_draft_misses_total",
                                       "Rounds that ran without the draft they had requested")),
      draft_skips(registry.AddCounter(
          "specfabric_draft_skips_total",
          "Rounds that did not wait for their draft because that was not expected to pay")),
      late_drafts(registry.AddCounter("specfabric_late_drafts_total",
                                      "Drafts that arrived after their round had been planned")),
      trial_steps(registry.AddCounter(
          "specfabric_drafting_trial_steps_total",
          "Steps of `specfabric_drafting_steps_total` in a mode that is not the best known, to "
          "measure what it yields by now")),
      cancelled(registry.AddCounter("specfabric_cancelled_total",
                                    "Sequences cancelled before their end")),
      not_finite(registry.AddCounter("specfabric_target_not_finite_total",
                                     "Sequences ended by logits that are not finite numbers")),
      draft_probs(
          registry.AddCounter("specfabric_draft_probs_received_total",
                              "Tensors of draft probabilities that trees were verified with")),
      draft_probs_bytes(registry.AddCounter("specfabric_draft_probs_received_bytes_total",
                                            "Bytes of tensors of draft probabilities received")),
      states_sent(registry.AddCounter("specfabric_hidden_states_sent_total",
                                      "Positions whose hidden states were sent to a draft worker")),
      states_sent_bytes(registry.AddCounter("specfabric_hidden_states_sent_bytes_total",
                                            "Bytes of hidden states sent to draft workers")),
      states_dropped(registry.AddCounter(
          "specfabric_hidden_states_dropped_total",
          "Positions whose hidden states were not sent: no slot was free, or too much was on its "
          "way to the worker")),
      scored_rounds(registry.AddCounter("specfabric_scored_rounds_total",
                                        "Rounds in which all drafters were asked, to compare "
                                        "them")),
      ngram_lookup(DrafterSeries(registry, "ngram_lookup")),
      preemptions(
          registry.AddCounter("specfabric_preemptions_total",
                              "Sequences preempted, which frees their KV blocks for others")),
      cache_queries(registry.AddCounter("specfabric_prefix_cache_queries_total",
                                        "Tokens looked up in the prefix cache")),
      cache_hits(registry.AddCounter("specfabric_prefix_cache_hits_total",
                                     "Tokens found in the prefix cache")),
      vllm_preemptions(registry.AddCounter(
          "vllm:num_preemptions_total",
          "`specfabric_preemptions_total` again, under the name vLLM's dashboards use",
          VllmLabels(model_name))),
      vllm_cache_queries(registry.AddCounter("vllm:prefix_cache_queries_total",
                                             "`specfabric_prefix_cache_queries_total` again",
                                             VllmLabels(model_name))),
      vllm_cache_hits(registry.AddCounter("vllm:prefix_cache_hits_total",
                                          "`specfabric_prefix_cache_hits_total` again",
                                          VllmLabels(model_name))),
      rounds(registry.AddCounter("specfabric_rounds_total",
                                 "Decode and verification rounds, one a sequence a step")),
      drafts(registry.AddCounter("specfabric_drafts_total",
                                 "Rounds that verified draft tokens, one a sequence a step")),
      drafted_tokens(
          registry.AddCounter("specfabric_drafted_tokens_total", "Draft tokens verified")),
      accepted_tokens(
          registry.AddCounter("specfabric_accepted_tokens_total", "Draft tokens accepted")),
      vllm_drafts(registry.AddCounter("vllm:spec_decode_num_drafts_total",
                                      "`specfabric_drafts_total` again", VllmLabels(model_name))),
      vllm_draft_tokens(registry.AddCounter("vllm:spec_decode_num_draft_tokens_total",
                                            "`specfabric_drafted_tokens_total` again",
                                            VllmLabels(model_name))),
      vllm_accepted_tokens(registry.AddCounter("vllm:spec_decode_num_accepted_tokens_total",
                                               "`specfabric_accepted_tokens_total` again",
                                               VllmLabels(model_name))),
      draft_routes(registry),
      registry_(registry) {
  for (int span = 0; span < kSpans; ++span) {
    spans[span] = &registry.AddHistogram("specfabric_round_span_seconds",
                                         "Time of a round by phase: draft_wait, "
                                         "draft_compute, transfer, plan, forward, verify, commit",
                                         ExponentialBounds(2e-6, 2, 21),  // 2 us to 2.1 s
                                         {{"span", kSpanNames[span]}});
  }
  for (size_t mode = 0; mode < kDraftModeNames.size(); ++mode) {
    const Labels labels = {{"mode", kDraftModeNames[mode]}};
    mode_steps[mode] = &registry.AddCounter(
        "specfabric_drafting_steps_total",
        "Steps by how drafters were used: `none` (not at all), `just_in_time` (asked, and waited "
        "for), `ahead` (they draft on while the step runs)",
        labels);
    mode_yields[mode] =
        &registry.AddGauge("specfabric_drafting_yield",
                           "Tokens a second over plain decoding's that each mode is "
                           "expected to yield at the present load, its measured "
                           "pace included; 0: not known",
                           labels);
  }
  for (size_t status = 0; status < kDraftStatusNames.size(); ++status) {
    draft_replies[status] =
        &registry.AddCounter("specfabric_draft_replies_total", "Replies of draft workers received",
                             {{"status", kDraftStatusNames[status]}});
  }
  for (size_t i = 0; i < kExactnessNames.size(); ++i) {
    exactness[i] = &registry.AddGauge("specfabric_target_exactness", kExactnessHelp,
                                      {{"exactness", kExactnessNames[i]}});
  }
  for (size_t i = 0; i < kRefusalNames.size(); ++i) {
    refused[i] = &registry.AddCounter(
        "specfabric_refused_drafts_total",
        "Replies not verified: `sampling` (made for another verification method "
        "or other sampling), `invalid` (tree or draft probabilities), `no_slot`",
        {{"reason", kRefusalNames[i]}});
  }
  for (size_t i = 0; i < kVerificationMethodNames.size(); ++i) {
    verifications[i] = &registry.AddCounter("specfabric_verifications_total",
                                            "Trees with draft tokens verified; `typical` is lossy",
                                            {{"verification", kVerificationMethodNames[i]}});
  }
  for (int position = 0; position < positions; ++position) {
    Labels labels = {{"position", std::to_string(position)}};
    accepted_at.push_back(&registry.AddCounter("specfabric_accepted_tokens_per_position_total",
                                               "Draft tokens accepted, by depth in the tree",
                                               labels));
    labels.merge(VllmLabels(model_name));
    vllm_accepted_at.push_back(
        &registry.AddCounter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                             "`specfabric_accepted_tokens_per_position_total` again", labels));
  }
}

DrafterMetrics TargetMetrics::AddDrafter(const std::string& model) {
  DrafterMetrics series = DrafterSeries(registry_, model);
  series.share = &registry_.AddGauge("specfabric_drafter_share",
                                     "Share of recent rounds for which this draft model was chosen",
                                     {{"drafter", model}});
  series.first_accepted = &registry_.AddGauge("specfabric_drafter_first_token_acceptance",
                                              "Share of this draft model's recent trees of which "
                                              "the first token was accepted; 0: not known",
                                              {{"drafter", model}});
  return series;
}

void TargetMetrics::CountRound(int verification, int drafted, int accepted) {
  rounds.Increment();
  if (drafted == 0) return;
  if (verification >= 0 && verification < static_cast<int>(verifications.size())) {
    verifications[verification]->Increment();
  }
  drafts.Increment();
  vllm_drafts.Increment();
  drafted_tokens.Increment(drafted);
  vllm_draft_tokens.Increment(drafted);
  accepted_tokens.Increment(accepted);
  vllm_accepted_tokens.Increment(accepted);
  const int last = static_cast<int>(accepted_at.size()) - 1;
  for (int depth = 0; depth < accepted && last >= 0; ++depth) {
    accepted_at[std::min(depth, last)]->Increment();
    vllm_accepted_at[std::min(depth, last)]->Increment();
  }
}

void TargetMetrics::CountScheduling(uint64_t preempted, uint64_t queried, uint64_t found) {
  const auto add = [](Counter& ours, Counter& vllms, uint64_t count) {
    ours.Increment(static_cast<double>(count));
    vllms.Increment(static_cast<double>(count));
  };
  add(preemptions, vllm_preemptions, preempted);
  add(cache_queries, vllm_cache_queries, queried);
  add(cache_hits, vllm_cache_hits, found);
}

void TargetMetrics::SetExactness(int index) {
  for (int i = 0; i < static_cast<int>(exactness.size()); ++i) exactness[i]->Set(i == index);
}

void TargetMetrics::CountDraftReply(int status) {
  if (status >= 0 && status < static_cast<int>(draft_replies.size())) {
    draft_replies[status]->Increment();
  }
}

}  // namespace specfabric::metrics
