#ifndef SPECFABRIC_METRICS_DRAFT_METRICS_H_
#define SPECFABRIC_METRICS_DRAFT_METRICS_H_

#include <array>

#include "metrics/registry.h"
#include "metrics/target_metrics.h"

namespace specfabric::metrics {

// Why a draft session was thrown out: its place was needed, it was idle for too long, or its
// target ended or restarted.
enum class Eviction { kLru, kTtl, kPurge };
constexpr int kEvictions = 3;

struct DraftMetrics {
  explicit DraftMetrics(Registry& registry);

  void CountEviction(Eviction reason) { evictions[static_cast<int>(reason)]->Increment(); }
  void CountRequest(int status);  // the schemas::DraftStatus it was answered with

  Gauge& sessions;
  Gauge& capacity;  // sessions at once
  std::array<Counter*, kEvictions> evictions;
  std::array<Counter*, kDraftStatusNames.size()> requests;
  Histogram& draft_seconds;  // from a request's receipt to its reply
  Counter& tree_nodes;       // sent
  Counter& weights_bytes;    // of the distributions that nodes were drawn from, sent beside them
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_DRAFT_METRICS_H_
