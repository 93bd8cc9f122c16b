#ifndef SPECFABRIC_METRICS_TRACE_METRICS_H_
#define SPECFABRIC_METRICS_TRACE_METRICS_H_

#include <cstdint>
#include <functional>

#include "metrics/registry.h"

namespace specfabric::metrics {

// Numbers of spans since start.
struct TraceCounters {
  uint64_t recorded = 0, dropped = 0, lost = 0;
};

// Publishes the recorder's own counters, which `read` returns when the metrics are rendered. Must
// be destroyed before the objects that `read` uses.
class TraceMetrics {
 public:
  TraceMetrics(Registry& registry, std::function<TraceCounters()> read);
  TraceMetrics(const TraceMetrics&) = delete;
  TraceMetrics& operator=(const TraceMetrics&) = delete;

 private:
  void Update();

  Counter& recorded_;
  Counter& dropped_;
  Counter& lost_;
  std::function<TraceCounters()> read_;
  TraceCounters seen_;
  Registry::Refresh refresh_;  // last member: destroyed before those that it uses
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_TRACE_METRICS_H_
