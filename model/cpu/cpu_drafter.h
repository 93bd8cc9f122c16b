#ifndef SPECFABRIC_MODEL_CPU_CPU_DRAFTER_H_
#define SPECFABRIC_MODEL_CPU_CPU_DRAFTER_H_

// What a drafter that reads hidden states has beside a transformer's layers (see StateDrafter).

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/cpu/context_keys.h"
#include "model/cpu/draft_vocabulary.h"
#include "model/cpu/eagle3.h"
#include "model/cpu/kernels.h"
#include "model/cpu/mtp.h"
#include "model/cpu/sequential_head.h"
#include "model/cpu/state_fuser.h"

namespace specfabric::model::cpu {

struct CpuDrafter {
  StateFuser fuser;
  DraftVocabulary vocabulary;
  std::optional<Eagle3> eagle = {};         // of EAGLE-3
  std::optional<Mtp> mtp = {};              // of MTP
  std::optional<ContextKeys> context = {};  // of block drafters
  std::optional<SequentialHead> head = {};  // of those that have one

  // Each row of a pass has a state, and hands one on.
  bool joins_states() const { return eagle || mtp; }
};

// config.states is set. Errors are those of Checkpoint::Find and of the factory.
absl::StatusOr<CpuDrafter> LoadCpuDrafter(const OpenedDrafter& drafter, const ModelConfig& config,
                                          const MatrixFactory<std::unique_ptr<Linear>>& make_matrix,
                                          const Kernels& kernels);

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_CPU_DRAFTER_H_
