#include "target/state_outbox.h"

#include <memory>
#include <utility>

#include "base/status.h"
#include "link/gpu_slots.h"
#include "model/features.h"
#include "spdlog/spdlog.h"

namespace specfabric::target {
namespace {

// Those of draft probabilities are numbered from 0 on.
constexpr uint8_t kStatePool = 127;

}  // namespace

StateOutbox MakeStateOutbox(const std::function<link::Link*()>& link, transport::MemoryKind kind) {
  StateOutbox outbox;
  // The slots are taken when the first states are sent.
  outbox.slot = [link, kind, pool = std::shared_ptr<transport::SlotPool>()](
                    const transport::Fence& fence) mutable -> absl::StatusOr<transport::Lease> {
    if (pool == nullptr) {
      absl::Status gpu;
      auto added = link::AddPoolOrHosts(
          *link(), kStatePool, {kind, schemas::kStateSlotBytes, schemas::kStateSlots}, &gpu);
      if (!gpu.ok())
        spdlog::warn("{}",
                     model::Describe(model::kGpuStates, {.on = false, .why = base::Message(gpu)}));
      if (!added.ok()) return added.status();
      pool = *std::move(added);
    }
    return pool->Acquire(fence);
  };
  outbox.send = [link](PeerId peer, const schemas::HiddenStates& described, uint8_t pool,
                       transport::Lease lease, uint32_t bytes) {
    const transport::TensorFields fields = {
        {described.target_incarnation, described.number}, pool, described.number};
    absl::Status sent = link()->SendTensor(peer, schemas::TensorType::kHiddenStates, fields,
                                           std::move(lease), bytes);
    if (sent.ok()) sent = link()->Send(peer, described);
    return sent;
  };
  return outbox;
}

}  // namespace specfabric::target
