#include "model/cpu/cpu_drafter.h"

#include <utility>

namespace specfabric::model::cpu {

absl::StatusOr<CpuDrafter> LoadCpuDrafter(const OpenedDrafter& drafter, const ModelConfig& config,
                                          const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                          const Kernels& kernels) {
  absl::StatusOr<StateFuser> fuser = StateFuser::Load(drafter, config, make_matrix, kernels);
  if (!fuser.ok()) return fuser.status();
  CpuDrafter parts = {.fuser = *std::move(fuser),
                      .vocabulary = {drafter.target_ids, config.vocabulary}};
  const std::optional<BlockDrafter>& block = config.states->block;
  if (!block) {
    absl::StatusOr<Eagle3> eagle = Eagle3::Load(drafter, config, kernels);
    if (!eagle.ok()) return eagle.status();
    parts.eagle = *std::move(eagle);
    return parts;
  }
  absl::StatusOr<ContextKeys> context = ContextKeys::Load(drafter, config, make_matrix);
  if (!context.ok()) return context.status();
  parts.context = *std::move(context);
  if (block->sequential()) {
    absl::StatusOr<SequentialHead> head = SequentialHead::Load(drafter, config, make_matrix);
    if (!head.ok()) return head.status();
    parts.head = *std::move(head);
  }
  return parts;
}

}  // namespace specfabric::model::cpu
