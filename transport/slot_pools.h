#ifndef SPECFABRIC_TRANSPORT_SLOT_POOLS_H_
#define SPECFABRIC_TRANSPORT_SLOT_POOLS_H_

// The pools of one engine, by the id that its peers' tensors name. Private to transport/.
//
// Threads: the engine's, but for Stats, which any thread may call.

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/slot_pool.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

class SlotPools {
 public:
  explicit SlotPools(UcxRuntime& runtime) : runtime_(runtime) {}

  absl::StatusOr<std::shared_ptr<SlotPool>> Add(uint8_t id, const SlotPoolOptions& options);
  SlotPool* Find(uint8_t id) const;  // null: there is none
  // Ends the registrations, unless the runtime keeps its context. Callers may keep their leases.
  void Unmap();
  std::vector<PoolStats> Stats() const;

 private:
  UcxRuntime& runtime_;
  mutable std::mutex mutex_;  // held to change `pools_`, and by other threads to read it
  absl::flat_hash_map<uint8_t, std::shared_ptr<SlotPool>> pools_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_SLOT_POOLS_H_
