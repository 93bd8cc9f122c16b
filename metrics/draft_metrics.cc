#include "metrics/draft_metrics.h"

#include <cstddef>
#include <string>

namespace specfabric::metrics {
namespace {

constexpr std::array<const char*, kEvictions> kEvictionNames = {"lru", "ttl", "purge"};

constexpr char kStatesDroppedHelp[] =
    "Positions whose hidden states were received in vain: `invalid` (not finite, or of another "
    "shape), `no_room`";

}  // namespace

DraftMetrics::DraftMetrics(Registry& registry)
    : sessions(registry.AddGauge("specfabric_draft_sessions", "Open sessions")),
      capacity(registry.AddGauge("specfabric_draft_session_capacity", "Limit of open sessions")),
      kv_tokens(
          registry.AddGauge("specfabric_draft_kv_tokens", "Tokens that the KV cache has room for")),
      draft_seconds(registry.AddHistogram("specfabric_draft_seconds",
                                          "From the receipt of a draft request to its reply",
                                          ExponentialBounds(2e-6, 2, 21))),
      tree_nodes(registry.AddCounter("specfabric_draft_tree_nodes_total", "Tree nodes sent")),
      passes(registry.AddCounter("specfabric_draft_passes_total",
                                 "Passes of the model while a target waited")),
      passes_ahead(registry.AddCounter(
          "specfabric_draft_ahead_passes_total",
          "Passes of the model that draft ahead, before the outcome of a round is known")),
      nodes_ahead(registry.AddCounter("specfabric_draft_ahead_nodes_total",
                                      "Tree nodes computed by drafting ahead")),
      replies_without_pass(
          registry.AddCounter("specfabric_draft_ready_replies_total",
                              "Trees sent without a pass, from nodes computed ahead")),
      foreign_messages(registry.AddCounter(
          "specfabric_draft_foreign_messages_total",
          "Messages dropped because they name sequences of another target or incarnation")),
      dropped_messages(
          registry.AddCounter("specfabric_draft_dropped_messages_total",
                              "Messages, tensors and refusals of tensors dropped because "
                              "the inbox was full")),
      draft_probs_bytes(registry.AddCounter("specfabric_draft_probs_bytes_total",
                                            "Bytes of draft probabilities sent with trees")),
      states(registry.AddCounter("specfabric_draft_hidden_states_total",
                                 "Positions whose hidden states were received from a target")),
      state_bytes(registry.AddCounter("specfabric_draft_hidden_states_bytes_total",
                                      "Bytes of hidden states received from targets")),
      invalid_states(registry.AddCounter("specfabric_draft_hidden_states_dropped_total",
                                         kStatesDroppedHelp, {{"reason", "invalid"}})),
      refused_states(registry.AddCounter("specfabric_draft_hidden_states_dropped_total",
                                         kStatesDroppedHelp, {{"reason", "no_room"}})),
      lost_states(registry.AddCounter("specfabric_draft_hidden_states_lost_total",
                                      "Tensors of hidden states that did not arrive")),
      registry_(registry) {
  for (int reason = 0; reason < kEvictions; ++reason) {
    evictions[reason] =
        &registry.AddCounter("specfabric_draft_evictions_total",
                             "Sessions evicted: lru, ttl, purge (their target ended or restarted)",
                             {{"reason", kEvictionNames[reason]}});
  }
  for (size_t status = 0; status < kDraftStatusNames.size(); ++status) {
    requests[status] = &registry.AddCounter("specfabric_draft_requests_total",
                                            "Draft requests, by status of the reply",
                                            {{"status", kDraftStatusNames[status]}});
  }
}

void DraftMetrics::CountRequest(int status) {
  if (status >= 0 && status < static_cast<int>(requests.size())) requests[status]->Increment();
}

Counter* DraftMetrics::Outcomes(int outcome, int accepted) {
  return &registry_.AddCounter(
      "specfabric_draft_ahead_outcomes_total",
      "Verified trees, by draft tokens accepted and by whether the next root had been computed "
      "ahead: `hit`; `not_grown` (a candidate, not computed), `not_candidate` (no candidate), "
      "`not_reached` (not even its parent was computed)",
      {{"outcome", kAheadOutcomeNames[outcome]}, {"accepted", std::to_string(accepted)}});
}

}  // namespace specfabric::metrics
