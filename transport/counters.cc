#include "transport/counters.h"

namespace specfabric::transport {

FabricStats Counters::Read() const {
  FabricStats stats;
  stats.frames_sent = frames_sent.Read();
  stats.frames_received = frames_received.Read();
  stats.bytes_sent = bytes_sent.Read();
  stats.bytes_received = bytes_received.Read();
  stats.tensors_sent = tensors_sent.Read();
  stats.tensors_received = tensors_received.Read();
  stats.opened = opened.Read();
  stats.closed = closed.Read();
  stats.refused_frames = refused_frames.Read();
  stats.send_errors = send_errors.Read();
  stats.connect_failures = connect_failures.Read();
  stats.wakeups = wakeups.Read();
  stats.bytes_copied = bytes_copied.Read();
  stats.unattributed_frames = unattributed_frames.Read();
  stats.refused_secrets = refused_secrets.Read();
  stats.non_rdma_connections = non_rdma_connections.Read();
  stats.silent_peers = silent_peers.Read();
  stats.stale_tensors = stale_tensors.Read();
  stats.refused_tensors = refused_tensors.Read();
  stats.late_tensors = late_tensors.Read();
  stats.faults = faults.Read();
  stats.restarts = restarts.Read();
  stats.releasing = releasing.Read();
  stats.back_pressure = back_pressure;
  return stats;
}

}  // namespace specfabric::transport
