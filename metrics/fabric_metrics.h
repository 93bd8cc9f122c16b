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

// An open connection, and the payload it has carried.
struct PeerCounters {
  uint64_t connection = 0;  // its name, of no other of its fabric ever
  std::string peer, role, wire;
  uint64_t bytes_sent = 0, bytes_received = 0;
};

// Totals since start (but for those marked "now"), as the transport and the link count them.
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

// For a process with several fabrics: *sum becomes that of all.
void Add(const FabricCounters& more, FabricCounters* sum);

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
  std::map<std::string, Gauge*> wires_;  // those that were ever seen
  // Of what is connected. An address that connects again may have two connections for a moment.
  std::map<PeerKey, PeerSeries> peers_;
  using Connection = std::pair<uint64_t, std::string>;  // and whose, since fabrics name them alike
  std::map<Connection, SeenBytes> seen_;
  std::function<FabricCounters()> read_;
  Registry::Refresh refresh_;  // last: ends before the others go
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_FABRIC_METRICS_H_
