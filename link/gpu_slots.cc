#include "link/gpu_slots.h"

#include <memory>

namespace specfabric::link {

absl::Status CheckGpuSlots(transport::FabricOptions options) {
  options.gpu = 0;
  const auto fabric = transport::Fabric::Create(options, {});
  if (!fabric.ok()) return fabric.status();
  constexpr size_t kSlotBytes = 1 << 16;
  return (*fabric)->AddPool(0, {transport::MemoryKind::kCuda, kSlotBytes, 1}).status();
}

}  // namespace specfabric::link
