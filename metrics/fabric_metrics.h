#ifndef SPECFABRIC_METRICS_FABRIC_METRICS_H_
#define SPECFABRIC_METRICS_FABRIC_METRICS_H_

#include <array>
#include <cstdint>
#include <functional>

#include "metrics/registry.h"

namespace specfabric::metrics {

// Totals since start, as the transport and the link count them.
struct FabricCounters {
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t opened = 0, closed = 0, connect_failures = 0;
  uint64_t refused_frames = 0, send_errors = 0, wakeups = 0;
  uint64_t handshakes = 0, refused_hellos = 0, malformed = 0, reconnects = 0;
};

// The fabric counts for itself; `read` is called when somebody asks for the metrics. Must be
// destroyed before what `read` reads.
class FabricMetrics {
 public:
  FabricMetrics(Registry& registry, std::function<FabricCounters()> read);
  FabricMetrics(const FabricMetrics&) = delete;
  FabricMetrics& operator=(const FabricMetrics&) = delete;

 private:
  struct Series {
    Counter* counter;
    uint64_t FabricCounters::*total;
    uint64_t seen = 0;
  };
  void Update();

  std::array<Series, 14> series_;
  std::function<FabricCounters()> read_;
  Registry::Refresh refresh_;  // last: ends before the others go
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_FABRIC_METRICS_H_
