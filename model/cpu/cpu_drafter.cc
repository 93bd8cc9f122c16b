#include "model/cpu/cpu_drafter.h"

#include <utility>
#include <vector>

#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

absl::StatusOr<CpuDrafter> LoadCpuDrafter(const OpenedDrafter& drafter, const ModelConfig& config,
                                          const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                          const Kernels& kernels) {
  absl::StatusOr<FuseWeights> fuse = LoadFuseWeights(drafter.own.checkpoint, config, make_matrix);
  if (!fuse.ok()) return fuse.status();
  std::vector<float> state_norm = fuse->state_norm;
  CpuDrafter parts = {.fuser = {config, *std::move(fuse), kernels},
                      .vocabulary = {drafter.target_ids, config.vocabulary}};
  const std::optional<BlockDrafter>& block = config.states->block;
  if (!block) {
    parts.eagle.emplace(config, std::move(state_norm), kernels);
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
