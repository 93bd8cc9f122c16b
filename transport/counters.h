#ifndef SPECFABRIC_TRANSPORT_COUNTERS_H_
#define SPECFABRIC_TRANSPORT_COUNTERS_H_

// The counters behind FabricStats. Private to transport/.

#include <atomic>
#include <cstdint>

#include "transport/fabric.h"

namespace specfabric::transport {

// Written by the progress thread alone, so that adding needs no locked instruction; read by any.
class Counter {
 public:
  void operator+=(uint64_t more) { Set(Read() + more); }
  void operator++() { *this += 1; }
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t Read() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Counters {
  Counter frames_sent, frames_received, bytes_sent, bytes_received;
  Counter tensors_sent, tensors_received;
  Counter opened, closed, refused_frames, send_errors, connect_failures;
  Counter wakeups, bytes_copied, unattributed_frames;
  Counter refused_secrets, non_rdma_connections, silent_peers;
  Counter stale_tensors, refused_tensors, late_tensors;
  Counter faults, restarts, releasing;
  std::atomic<uint64_t> back_pressure{0};  // written by the threads that send

  FabricStats Read() const;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_COUNTERS_H_
