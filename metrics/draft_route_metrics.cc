#include "metrics/draft_route_metrics.h"

#include <set>

namespace specfabric::metrics {
namespace {

constexpr const char* kLatency = "specfabric_target_worker_latency_seconds";
constexpr const char* kOutstanding = "specfabric_target_worker_outstanding_requests";
constexpr const char* kSequences = "specfabric_target_worker_sequences";
constexpr const char* kInService = "specfabric_target_worker_in_service";
constexpr const char* kSlow = "specfabric_target_worker_slow";
constexpr const char* kReplies = "specfabric_target_worker_replies_total";
constexpr const char* kMisses = "specfabric_target_worker_misses_total";
constexpr const char* kMoves = "specfabric_target_worker_moves_total";

}  // namespace

DraftRouteMetrics::Series DraftRouteMetrics::Add(const Key& key) {
  const Labels labels = {{"worker", key.first}, {"model", key.second}};
  Series s;
  s.latency = &registry_.AddGauge(
      kLatency,
      "Smoothed time from a request to its draft; until it is known, the time of the last reply, "
      "prefill included, or 0 before the first; the series of a worker exist while it is connected",
      labels);
  s.outstanding = &registry_.AddGauge(kOutstanding, "Draft requests without an outcome", labels);
  s.sequences = &registry_.AddGauge(kSequences, "Sequences that the worker drafts for", labels);
  s.in_service = &registry_.AddGauge(
      kInService, "1 while the worker gets requests; 0: it missed too many, or drains", labels);
  s.slow = &registry_.AddGauge(kSlow, "1 while it is slow: see `--draft_latency_warn`", labels);
  s.replies = &registry_.AddCounter(kReplies, "Drafts that arrived in time", labels);
  s.misses = &registry_.AddCounter(kMisses, "Draft requests without a usable reply", labels);
  s.moves = &registry_.AddCounter(
      kMoves, "Sequences that moved to the worker because it was clearly better (`--draft_router`)",
      labels);
  return s;
}

void DraftRouteMetrics::Remove(const Series& s) {
  registry_.Remove(kLatency, s.latency);
  registry_.Remove(kOutstanding, s.outstanding);
  registry_.Remove(kSequences, s.sequences);
  registry_.Remove(kInService, s.in_service);
  registry_.Remove(kSlow, s.slow);
  registry_.Remove(kReplies, s.replies);
  registry_.Remove(kMisses, s.misses);
  registry_.Remove(kMoves, s.moves);
}

void DraftRouteMetrics::Update(const std::vector<DraftRoute>& routes) {
  std::set<Key> connected;
  for (const DraftRoute& route : routes) connected.emplace(route.worker, route.model);
  std::erase_if(series_, [&](const auto& entry) {
    if (connected.contains(entry.first)) return false;
    Remove(entry.second);
    return true;
  });
  for (const DraftRoute& route : routes) {
    const Key key{route.worker, route.model};
    auto it = series_.find(key);
    if (it == series_.end()) it = series_.emplace(key, Add(key)).first;
    Series& s = it->second;
    s.latency->Set(route.latency_seconds);
    s.outstanding->Set(route.outstanding);
    s.sequences->Set(route.sequences);
    s.in_service->Set(route.in_service);
    s.slow->Set(route.slow);
    AdvanceTo(route.replies, &s.seen_replies, s.replies);
    AdvanceTo(route.misses, &s.seen_misses, s.misses);
    AdvanceTo(route.moves, &s.seen_moves, s.moves);
  }
}

}  // namespace specfabric::metrics
