#ifndef SPECFABRIC_TESTS_TRANSPORT_FAULT_PEER_H_
#define SPECFABRIC_TESTS_TRANSPORT_FAULT_PEER_H_

// Shared by fault_matrix_test and its peer process.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/transport/process_info.h"
#include "transport/fabric.h"

namespace specfabric::transport {

constexpr uint8_t kReceivePool = 1, kSendPool = 2;
constexpr int32_t kSlots = 8;  // of either pool
constexpr size_t kTensorBytes = 1 << 20;

// Frames to the peer process. Tensors come back as they went, from a slot to a slot.
enum RequestType : uint16_t {
  kEcho = 1,    // comes back as it went
  kReport = 2,  // comes back with DescribeResources
  kGoDeaf = 3,  // its progress thread blocks until SIGUSR1
};

struct Pools {
  std::shared_ptr<SlotPool> receive, send;
};

inline Pools AddPools(Fabric& fabric) {
  const SlotPoolOptions options = {MemoryKind::kHost, kTensorBytes, kSlots};
  return {fabric.AddPool(kReceivePool, options).value(),
          fabric.AddPool(kSendPool, options).value()};
}

// A test with a long silence_timeout has a long receive_timeout too.
inline base::Nanos ReceiveTimeout(const FabricOptions& options) {
  return std::max(options.receive_timeout, options.silence_timeout);
}

// The resources of this process and its fabric that a fault might leak.
inline std::string DescribeResources(const Fabric& fabric, const Pools& pools) {
  const ProcessInfo process = ProcessInfo::Of(getpid());
  const auto free = [](const SlotPool& pool) {
    return pool.CountStates()[static_cast<size_t>(SlotState::kFree)];
  };
  std::string text =
      absl::StrCat(process.file_descriptors, " descriptors, ", free(*pools.receive), " + ",
                   free(*pools.send), " free slots, ", fabric.stats().releasing, " releasing");
  std::map<std::string, int> wires;
  for (const ConnectionStats& open : fabric.Connections()) ++wires[open.wire];
  for (const auto& [wire, count] : wires) absl::StrAppend(&text, ", ", count, " x ", wire);
  return text;
}

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_FAULT_PEER_H_
