#ifndef SPECFABRIC_METRICS_TRACE_METRICS_H_
#define SPECFABRIC_METRICS_TRACE_METRICS_H_

#include <cstdint>
#include <functional>

#include "metrics/registry.h"

namespace specfabric::metrics {

// Spans since start.
struct TraceCounters {
  uint64_t recorded = 0, dropped = 0, lost = 0;
};

// The recorder counts for itself; `read` is called when somebody asks for the metrics. Must be
// destroyed before what `read` reads.
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
  Registry::Refresh refresh_;  // last: ends before the others go
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_TRACE_METRICS_H_
