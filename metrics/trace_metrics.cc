#include "metrics/trace_metrics.h"

#include <utility>

namespace specfabric::metrics {

TraceMetrics::TraceMetrics(Registry& registry, std::function<TraceCounters()> read)
    : recorded_(registry.AddCounter("specfabric_trace_spans_total",
                                    "Spans recorded for `--span_file` and `--otlp_endpoint`")),
      dropped_(registry.AddCounter("specfabric_trace_dropped_spans_total",
                                   "Spans dropped because the queue was full")),
      lost_(registry.AddCounter("specfabric_trace_lost_spans_total",
                                "Spans lost because the file or the collector failed")),
      read_(std::move(read)),
      refresh_(registry.AddRefresh([this] { Update(); })) {}

void TraceMetrics::Update() {
  const TraceCounters now = read_();
  const auto add = [](Counter& counter, uint64_t now, uint64_t seen) {
    counter.Increment(static_cast<double>(now - seen));
  };
  add(recorded_, now.recorded, seen_.recorded);
  add(dropped_, now.dropped, seen_.dropped);
  add(lost_, now.lost, seen_.lost);
  seen_ = now;
}

}  // namespace specfabric::metrics
