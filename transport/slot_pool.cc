#include "transport/slot_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {

const char* Name(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "cuda"; }

const char* Name(SlotState state) {
  static constexpr std::array<const char*, kSlotStates> kNames = {
      "free", "filling", "sending", "receiving", "ready", "reading", "quarantined"};
  return kNames[static_cast<size_t>(state)];
}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  pool_ = std::move(other.pool_);
  slot_ = other.slot_;
  data_ = std::exchange(other.data_, nullptr);
  fence_ = other.fence_;
  return *this;
}

size_t Lease::capacity() const { return pool_ == nullptr ? 0 : pool_->options().slot_bytes; }

SlotState Lease::state() const {
  if (pool_ == nullptr) return SlotState::kFree;
  std::lock_guard lock(pool_->mutex_);
  return pool_->states_[slot_];
}

void Lease::Mark(SlotState state) {
  if (pool_ != nullptr) pool_->Set(slot_, state);
}

void Lease::Release() {
  if (pool_ == nullptr) return;
  Mark(SlotState::kFree);
  pool_.reset();
  data_ = nullptr;
}

SlotPool::SlotPool(const SlotPoolOptions& options, Slab slab, void (*free_slab)(const Slab&))
    : options_(options),
      slab_(slab),
      free_slab_(free_slab),
      states_(options.slots, SlotState::kFree) {
  for (int32_t slot = options.slots; slot-- > 0;) free_.push_back(slot);
}

SlotPool::~SlotPool() { free_slab_(slab_); }

absl::StatusOr<Lease> SlotPool::Take(const Fence& fence, SlotState state) {
  Lease lease;
  {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("none of the pool's ", options_.slots, " slots is free"));
    }
    lease.slot_ = free_.back();
    free_.pop_back();
    states_[lease.slot_] = state;
  }
  lease.pool_ = shared_from_this();
  lease.data_ = slab_.data + lease.slot_ * Stride(options_) + kSlotHeadroom;
  lease.fence_ = fence;
  return lease;
}

void SlotPool::Set(int32_t slot, SlotState state) {
  std::lock_guard lock(mutex_);
  states_[slot] = state;
  if (state == SlotState::kFree) free_.push_back(slot);
}

std::array<int32_t, kSlotStates> SlotPool::CountStates() const {
  std::array<int32_t, kSlotStates> counts = {};
  std::lock_guard lock(mutex_);
  for (SlotState state : states_) ++counts[static_cast<size_t>(state)];
  return counts;
}

}  // namespace specfabric::transport
