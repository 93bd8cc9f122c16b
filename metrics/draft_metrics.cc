#include "metrics/draft_metrics.h"

#include <cstddef>
#include <string>

namespace specfabric::metrics {
namespace {

constexpr std::array<const char*, kEvictions> kEvictionNames = {"lru", "ttl", "purge"};

}  // namespace

DraftMetrics::DraftMetrics(Registry& registry)
    : sessions(registry.AddGauge("specfabric_draft_sessions", "Sessions held")),
      capacity(registry.AddGauge("specfabric_draft_session_capacity", "Sessions held at most")),
      draft_seconds(registry.AddHistogram("specfabric_draft_seconds",
                                          "From the receipt of a draft request to its reply",
                                          ExponentialBounds(2e-6, 2, 21))),
      tree_nodes(registry.AddCounter("specfabric_draft_tree_nodes_total", "Tree nodes sent")),
      passes(registry.AddCounter("specfabric_draft_passes_total",
                                 "Passes of the model while a target waited")),
      passes_ahead(registry.AddCounter("specfabric_draft_ahead_passes_total",
                                       "Passes of the model ahead of the outcomes")),
      nodes_ahead(registry.AddCounter("specfabric_draft_ahead_nodes_total",
                                      "Nodes run ahead of the outcomes")),
      replies_without_pass(
          registry.AddCounter("specfabric_draft_ready_replies_total",
                              "Trees that were sent without a pass, from what was run ahead")),
      foreign_messages(registry.AddCounter(
          "specfabric_draft_foreign_messages_total",
          "Messages of a target about the sequences of another incarnation, dropped")),
      dropped_messages(registry.AddCounter("specfabric_draft_dropped_messages_total",
                                           "Messages dropped since the worker was too far behind")),
      draft_probs_bytes(registry.AddCounter("specfabric_draft_probs_bytes_total",
                                            "Bytes of distributions sent beside trees")),
      registry_(registry) {
  for (int reason = 0; reason < kEvictions; ++reason) {
    evictions[reason] = &registry.AddCounter(
        "specfabric_draft_evictions_total",
        "Sessions thrown out: lru, ttl, purge (their target ended or restarted)",
        {{"reason", kEvictionNames[reason]}});
  }
  for (size_t status = 0; status < kDraftStatusNames.size(); ++status) {
    requests[status] = &registry.AddCounter("specfabric_draft_requests_total",
                                            "Draft requests, by what they were answered with",
                                            {{"status", kDraftStatusNames[status]}});
  }
}

void DraftMetrics::CountRequest(int status) {
  if (status >= 0 && status < static_cast<int>(requests.size())) requests[status]->Increment();
}

Counter* DraftMetrics::Outcomes(int outcome, int accepted) {
  return &registry_.AddCounter(
      "specfabric_draft_ahead_outcomes_total",
      "Trees whose text went on, by draft tokens accepted, and by whether the next root had been "
      "run: "
      "`hit`; `not_grown` (a candidate, not run), `not_candidate` (no candidate), `not_reached` "
      "(not "
      "even its parent was run)",
      {{"outcome", kAheadOutcomeNames[outcome]}, {"accepted", std::to_string(accepted)}});
}

}  // namespace specfabric::metrics
