#include "link/gpu_slots.h"

namespace specfabric::link {

absl::Status CheckGpuSlots(transport::FabricOptions options) {
  options.gpu = 0;
  const auto fabric = transport::Fabric::Create(options, {});
  if (!fabric.ok()) return fabric.status();
  constexpr size_t kSlotBytes = 1 << 16;
  return (*fabric)->AddPool(0, {transport::MemoryKind::kCuda, kSlotBytes, 1}).status();
}

absl::StatusOr<std::shared_ptr<transport::SlotPool>> AddPoolOrHosts(
    Link& link, uint8_t id, transport::SlotPoolOptions slots, absl::Status* gpu) {
  auto pool = link.AddPool(id, slots);
  if (pool.ok() || slots.kind == transport::MemoryKind::kHost) return pool;
  *gpu = pool.status();
  slots.kind = transport::MemoryKind::kHost;
  return link.AddPool(id, slots);
}

}  // namespace specfabric::link
