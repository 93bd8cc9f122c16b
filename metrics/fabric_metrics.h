#ifndef SPECFABRIC_METRICS_FABRIC_METRICS_H_
#define SPECFABRIC_METRICS_FABRIC_METRICS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "metrics/registry.h"

namespace specfabric::metrics {

// An open connection and its payload bytes.
struct PeerCounters {
  uint64_t connection = 0;  // its id, unique in its fabric
  std::string peer, role, wire;
  uint64_t bytes_sent = 0, bytes_received = 0;
};

// Counters of the transport and the link: totals since start, except those marked "now".
struct FabricCounters {
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0, bytes_copied = 0;
  uint64_t tensors_sent = 0, tensors_received = 0;
  uint64_t stale_tensors = 0, refused_tensors = 0, late_tensors = 0;
  uint64_t opened = 0, closed = 0, connect_failures = 0;
  uint64_t refused_secrets = 0, non_rdma_connections = 0, silent_peers = 0, restarts = 0;
  uint64_t refused_frames = 0, unattributed_frames = 0;
  uint64_t send_errors = 0, back_pressure = 0, faults = 0, wakeups = 0;
  uint64_t handshakes = 0, refused_hellos = 0, malformed = 0, reconnects = 0;
  uint64_t lookup_failures = 0;
  uint64_t releasing = 0;                            // now
  uint64_t addresses = 0;                            // now
  std::vector<PeerCounters> peers;                   // now
  std::map<std::string, uint64_t> registered_bytes;  // now, by kind of memory
  std::map<std::string, int64_t> slots;              // now, by state
};

// Adds `more` to *sum, for a process with several fabrics.
void Add(const FabricCounters& more, FabricCounters* sum);

// Publishes the fabric's own counters, which `read` returns when the metrics are rendered. Must be
// destroyed before the objects that `read` uses.
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
  struct PeerSeries {
    Counter *sent, *received;
  };
  struct SeenBytes {
    uint64_t sent = 0, received = 0;
  };
  using PeerKey = std::array<std::string, 3>;  // peer, role, wire
  void Update();
  void UpdateWires(const std::vector<PeerCounters>& peers);
  void UpdatePeers(const std::vector<PeerCounters>& peers);
  PeerSeries AddPeer(const PeerKey& key);

  Registry& registry_;
  std::vector<Series> series_;
  Gauge& releasing_;
  Gauge& addresses_;
  std::map<std::string, Gauge*> wires_;  // all that have been seen
  // Of the open connections. A peer that reconnects may have two for a moment.
  std::map<PeerKey, PeerSeries> peers_;
  using Connection = std::pair<uint64_t, std::string>;  // id and peer: fabrics may use the same ids
  std::map<Connection, SeenBytes> seen_;
  std::function<FabricCounters()> read_;
  Registry::Refresh refresh_;  // last member: destroyed before those that it uses
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_FABRIC_METRICS_H_
