#include "link/fabric_counters.h"

#include <utility>

namespace specfabric::link {
namespace {

// Includes zeros, so that every series exists from the start.
void CountPools(const std::vector<transport::PoolStats>& pools, metrics::FabricCounters* counters) {
  for (transport::MemoryKind kind : {transport::MemoryKind::kHost, transport::MemoryKind::kCuda}) {
    counters->registered_bytes[transport::Name(kind)] = 0;
  }
  for (size_t state = 0; state < transport::kSlotStates; ++state) {
    int64_t& slots = counters->slots[transport::Name(static_cast<transport::SlotState>(state))];
    for (const transport::PoolStats& pool : pools) slots += pool.slots[state];
  }
  for (const transport::PoolStats& pool : pools) {
    counters->registered_bytes[transport::Name(pool.kind)] += pool.bytes;
  }
}

}  // namespace

metrics::FabricCounters ReadCounters(const Link& link) {
  const transport::FabricStats fabric = link.fabric_stats();
  const LinkStats stats = link.stats();
  metrics::FabricCounters counters;
  counters.frames_sent = fabric.frames_sent;
  counters.frames_received = fabric.frames_received;
  counters.bytes_sent = fabric.bytes_sent;
  counters.bytes_received = fabric.bytes_received;
  counters.bytes_copied = fabric.bytes_copied;
  counters.tensors_sent = fabric.tensors_sent;
  counters.tensors_received = fabric.tensors_received;
  counters.stale_tensors = fabric.stale_tensors;
  counters.refused_tensors = fabric.refused_tensors;
  counters.late_tensors = fabric.late_tensors;
  counters.opened = fabric.opened;
  counters.closed = fabric.closed;
  counters.connect_failures = fabric.connect_failures;
  counters.refused_secrets = fabric.refused_secrets;
  counters.non_rdma_connections = fabric.non_rdma_connections;
  counters.silent_peers = fabric.silent_peers;
  counters.restarts = fabric.restarts;
  counters.refused_frames = fabric.refused_frames;
  counters.unattributed_frames = fabric.unattributed_frames;
  counters.send_errors = fabric.send_errors;
  counters.back_pressure = fabric.back_pressure;
  counters.faults = fabric.faults;
  counters.wakeups = fabric.wakeups;
  counters.handshakes = stats.handshakes;
  counters.refused_hellos = stats.refused_hellos;
  counters.malformed = stats.malformed;
  counters.reconnects = stats.reconnects;
  counters.lookup_failures = stats.lookup_failures;
  counters.addresses = stats.addresses;
  counters.releasing = fabric.releasing;
  for (PeerStats& peer : link.peers()) {
    counters.peers.push_back({peer.peer, std::move(peer.address), schemas::Name(peer.role),
                              std::move(peer.wire), peer.bytes_sent, peer.bytes_received});
  }
  CountPools(link.pools(), &counters);
  return counters;
}

}  // namespace specfabric::link
