#ifndef SPECFABRIC_METRICS_DRAFT_ROUTE_METRICS_H_
#define SPECFABRIC_METRICS_DRAFT_ROUTE_METRICS_H_

// A target's metrics of each of its draft workers: one set of series for each worker, while it is
// connected, so that the number of series is bounded by the number of connections.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "metrics/registry.h"

namespace specfabric::metrics {

struct DraftRoute {
  std::string worker;  // its address
  std::string model;
  double latency_seconds = 0;                   // smoothed, from request to reply
  int32_t outstanding = 0;                      // requests without an outcome
  int32_t sequences = 0;                        // for which it drafts
  bool in_service = false;                      // gets requests other than probes
  bool slow = false;                            // latency is above --draft_latency_warn
  uint64_t replies = 0, misses = 0, moves = 0;  // since it connected
};

class DraftRouteMetrics {
 public:
  explicit DraftRouteMetrics(Registry& registry) : registry_(registry) {}
  DraftRouteMetrics(const DraftRouteMetrics&) = delete;
  DraftRouteMetrics& operator=(const DraftRouteMetrics&) = delete;

  // `routes`: all connected workers. Removes the series of others. Call from one thread.
  void Update(const std::vector<DraftRoute>& routes);

 private:
  struct Series {
    Gauge *latency, *outstanding, *sequences, *in_service, *slow;
    Counter *replies, *misses, *moves;
    uint64_t seen_replies = 0, seen_misses = 0, seen_moves = 0;
  };
  using Key = std::pair<std::string, std::string>;  // worker, model

  Series Add(const Key& key);
  void Remove(const Series& series);

  Registry& registry_;
  std::map<Key, Series> series_;
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_DRAFT_ROUTE_METRICS_H_
