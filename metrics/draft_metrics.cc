#include "metrics/draft_metrics.h"

#include <cstddef>

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
      weights_bytes(registry.AddCounter("specfabric_draft_weights_bytes_total",
                                        "Bytes of distributions sent beside trees")) {
  for (int reason = 0; reason < kEvictions; ++reason) {
    evictions[reason] = &registry.AddCounter("specfabric_draft_evictions_total",
                                             "Sessions thrown out before their target ended them",
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

}  // namespace specfabric::metrics
