#include "model/cpu/cpu_drafter.h"

#include <optional>
#include <utility>

#include "model/checkpoint/load_weights.h"

namespace specfabric::model::cpu {

absl::StatusOr<CpuDrafter> LoadCpuDrafter(const OpenedDrafter& drafter, const ModelConfig& config,
                                          const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                          const Kernels& kernels) {
  absl::StatusOr<FuseWeights> fuse = LoadFuseWeights(drafter, config, make_matrix);
  if (!fuse.ok()) return fuse.status();
  std::optional<Eagle3> eagle;
  if (JoinsStates(config)) eagle.emplace(config, std::move(fuse->state_norm), kernels);
  CpuDrafter parts = {.fuser = {config, *std::move(fuse), kernels},
                      .vocabulary = {drafter.target_ids, config.vocabulary},
                      .eagle = std::move(eagle)};
  if (config.states->mtp) {
    absl::StatusOr<MtpWeights> mtp = LoadMtpWeights(drafter, config, make_matrix);
    if (!mtp.ok()) return mtp.status();
    parts.mtp.emplace(config, *std::move(mtp), kernels);
    return parts;
  }
  const std::optional<BlockDrafter>& block = config.states->block;
  if (!block) return parts;
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
