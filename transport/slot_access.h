#ifndef SPECFABRIC_TRANSPORT_SLOT_ACCESS_H_
#define SPECFABRIC_TRANSPORT_SLOT_ACCESS_H_

// What only the engine may do with a slot: change its state, and take one to receive into. Private
// to transport/.

#include "absl/status/statusor.h"
#include "transport/slot_pool.h"

namespace specfabric::transport {

class SlotAccess {
 public:
  // Nothing for an empty lease.
  static void Mark(Lease& lease, SlotState state) { lease.Mark(state); }
  static absl::StatusOr<Lease> TakeToReceive(SlotPool& pool, const Fence& fence) {
    return pool.Take(fence, SlotState::kReceiving);
  }
  static Slab& SlabOf(SlotPool& pool) { return pool.slab_; }
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_SLOT_ACCESS_H_
