#include "link/fabric_counters.h"

namespace specfabric::link {

metrics::FabricCounters ReadCounters(const Link& link) {
  const transport::FabricStats fabric = link.fabric_stats();
  const LinkStats stats = link.stats();
  metrics::FabricCounters counters;
  counters.frames_sent = fabric.frames_sent;
  counters.frames_received = fabric.frames_received;
  counters.bytes_sent = fabric.bytes_sent;
  counters.bytes_received = fabric.bytes_received;
  counters.opened = fabric.opened;
  counters.closed = fabric.closed;
  counters.connect_failures = fabric.connect_failures;
  counters.refused_frames = fabric.refused_frames;
  counters.send_errors = fabric.send_errors;
  counters.wakeups = fabric.wakeups;
  counters.handshakes = stats.handshakes;
  counters.refused_hellos = stats.refused_hellos;
  counters.malformed = stats.malformed;
  counters.reconnects = stats.reconnects;
  return counters;
}

}  // namespace specfabric::link
