#include "transport/slot_pools.h"

#include "absl/strings/str_cat.h"
#include "transport/memory.h"
#include "transport/slot_access.h"

namespace specfabric::transport {

absl::StatusOr<std::shared_ptr<SlotPool>> SlotPools::Add(uint8_t id,
                                                         const SlotPoolOptions& options) {
  if (pools_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("there is a pool ", id, " already"));
  }
  auto slab = runtime_.Map(options);
  if (!slab.ok()) return slab.status();
  std::lock_guard lock(mutex_);
  return pools_.emplace(id, std::make_shared<SlotPool>(options, *slab, &FreeSlab)).first->second;
}

SlotPool* SlotPools::Find(uint8_t id) const {
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? nullptr : pool->second.get();
}

void SlotPools::Unmap() {
  for (auto& [id, pool] : pools_) runtime_.Unmap(SlotAccess::SlabOf(*pool));
}

std::vector<PoolStats> SlotPools::Stats() const {
  std::vector<PoolStats> stats;
  std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : pools_) {
    stats.push_back({.id = id,
                     .kind = pool->options().kind,
                     .bytes = pool->registered_bytes(),
                     .slots = pool->CountStates()});
  }
  return stats;
}

}  // namespace specfabric::transport
