#include "target/state_outbox.h"

#include <memory>
#include <utility>

#include "base/status.h"
#include "model/features.h"
#include "spdlog/spdlog.h"

namespace specfabric::target {
namespace {

// Those of draft probabilities are numbered from 0 on.
constexpr uint8_t kStatePool = 127;

absl::StatusOr<std::shared_ptr<transport::SlotPool>> AddPool(link::Link* link,
                                                             transport::MemoryKind kind) {
  const auto add = [&](transport::MemoryKind of) {
    return link->AddPool(kStatePool, {of, schemas::kStateSlotBytes, schemas::kStateSlots});
  };
  auto pool = add(kind);
  if (pool.ok() || kind == transport::MemoryKind::kHost) return pool;
  const model::FeatureState off = {.on = false, .why = base::Message(pool.status())};
  spdlog::warn("{}", model::Describe(model::kGpuStates, off));
  return add(transport::MemoryKind::kHost);
}

}  // namespace

StateOutbox MakeStateOutbox(const std::function<link::Link*()>& link, transport::MemoryKind kind) {
  StateOutbox outbox;
  // The slots are taken when the first states are sent.
  outbox.slot = [link, kind, pool = std::shared_ptr<transport::SlotPool>()](
                    const transport::Fence& fence) mutable -> absl::StatusOr<transport::Lease> {
    if (pool == nullptr) {
      auto added = AddPool(link(), kind);
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
