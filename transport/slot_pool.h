#ifndef SPECFABRIC_TRANSPORT_SLOT_POOL_H_
#define SPECFABRIC_TRANSPORT_SLOT_POOL_H_

// Registered memory that tensors are sent from and received into: one slab, registered with UCX
// once, cut into slots of one size. A slot is held by exactly one Lease, which frees it.
//
//   sender:    free -> filling -> sending -> free
//   receiver:  free -> receiving -> ready -> reading -> free
//   either:    sending or receiving -> quarantined (the peer was closed, or the tensor given up,
//              while UCX may still access the memory) -> free, once UCX has called back
//
// so that a late write never lands in a slot that is used again.
//
// Before each slot of host memory there is room for a frame's header, so that a small tensor is
// sent in one piece.
//
// Threads: any, for everything here. Host memory lives as long as its pool or any lease does, and
// is registered while the fabric that made it lives; device memory goes with the fabric.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace specfabric::transport {

enum class MemoryKind : uint8_t { kHost, kCuda };
const char* Name(MemoryKind kind);

// Which data a slot holds: what arrives for another incarnation or an older round is stale.
struct Fence {
  uint64_t incarnation = 0;
  uint32_t round = 0;
  friend bool operator==(const Fence&, const Fence&) = default;
};

enum class SlotState : uint8_t {
  kFree,
  kFilling,
  kSending,
  kReceiving,
  kReady,
  kReading,
  kQuarantined
};
constexpr size_t kSlotStates = 7;
const char* Name(SlotState state);  // "free", "filling", ...

constexpr size_t kSlotHeadroom = 64;

struct SlotPoolOptions {
  MemoryKind kind = MemoryKind::kHost;
  size_t slot_bytes = 0;
  int32_t slots = 0;
};

// Memory registered with UCX. `handle` is UCX's (ucp_mem_h), null once the fabric is gone.
struct Slab {
  MemoryKind kind = MemoryKind::kHost;
  uint8_t* data = nullptr;
  size_t bytes = 0;
  void* handle = nullptr;
};

class SlotPool;

// Holds one slot; movable; empty when default-constructed, moved from or released.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept
      : pool_(std::move(other.pool_)),
        slot_(other.slot_),
        data_(std::exchange(other.data_, nullptr)),
        fence_(other.fence_) {}
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() {
    if (pool_ != nullptr) Release();
  }

  explicit operator bool() const { return pool_ != nullptr; }
  uint8_t* data() const { return data_; }  // device memory in a pool of that kind
  size_t capacity() const;
  const Fence& fence() const { return fence_; }
  const SlotPool* pool() const { return pool_.get(); }
  SlotState state() const;
  void Release();

 private:
  friend class SlotPool;
  friend class SlotAccess;
  void Mark(SlotState state);

  std::shared_ptr<SlotPool> pool_;
  int32_t slot_ = 0;
  uint8_t* data_ = nullptr;
  Fence fence_;
};

class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  // Takes over the slab; `free_slab` is called with it at the end. Made by Fabric::AddPool.
  SlotPool(const SlotPoolOptions& options, Slab slab, void (*free_slab)(const Slab&));
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // A slot to fill and send. ResourceExhausted: none is free.
  absl::StatusOr<Lease> Acquire(const Fence& fence) { return Take(fence, SlotState::kFilling); }

  const SlotPoolOptions& options() const { return options_; }
  // UCX's registration of the slab; null once the fabric is gone.
  void* memory_handle() const { return slab_.handle; }
  size_t registered_bytes() const { return slab_.bytes; }
  // From one slot to the next.
  static size_t Stride(const SlotPoolOptions& options) {
    return (kSlotHeadroom + options.slot_bytes + kSlotHeadroom - 1) / kSlotHeadroom * kSlotHeadroom;
  }
  // How many slots are in each state, by SlotState.
  std::array<int32_t, kSlotStates> CountStates() const;

 private:
  friend class Lease;
  friend class SlotAccess;
  absl::StatusOr<Lease> Take(const Fence& fence, SlotState state);
  void Set(int32_t slot, SlotState state);

  const SlotPoolOptions options_;
  Slab slab_;
  void (*const free_slab_)(const Slab&);
  mutable std::mutex mutex_;
  std::vector<SlotState> states_;
  std::vector<int32_t> free_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_SLOT_POOL_H_
