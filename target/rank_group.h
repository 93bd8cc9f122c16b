#ifndef SPECFABRIC_TARGET_RANK_GROUP_H_
#define SPECFABRIC_TARGET_RANK_GROUP_H_

// The ranks of a tensor-parallel group that run in this process, each with a shard of the weights
// and of the KV cache and with verification buffers. Of several ranks, each has a thread that owns
// these. A single rank is loaded on a thread of its own and then runs its steps on the thread that
// calls Run or Execute, which saves two wake-ups a step. The leader gives all of them the same
// plan. Ranks in other processes: target/group_leader.h, target/rank_service.h.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "model/parallel/process_communicator.h"
#include "model/rank_model.h"
#include "scheduler/step_plan.h"
#include "speculation/draft_probs.h"
#include "target/verifier.h"
#include "verification/reference/acceptance.h"

namespace specfabric::target {

struct RankGroupOptions {
  std::string model_dir;
  int tensor_parallel = 1;  // ranks of each of rank.pipeline_stages
  model::RankOptions rank;
  verification::TypicalOptions typical;
  // For a group that spans processes: the connection between them, which must outlive the ranks,
  // and which of the group's ranks run here. Null: all of them do.
  model::ProcessExchange* exchange = nullptr;
  int first_rank = 0, rank_count = 0;

  model::GroupShape shape() const { return {tensor_parallel, rank.pipeline_stages}; }
};

// Time that one step took on rank 0.
struct StepTimes {
  base::Nanos forward = 0;
  base::Nanos verify = 0;
};

class RankGroup {
 public:
  // Loads every shard, each on its own thread; with `exchange`, at the same time as the other
  // processes. Errors: RankModel::Load's. Aborted: loading failed in another process.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Start(const RankGroupOptions& options);
  ~RankGroup();  // joins the ranks

  // KV moves, forward pass and verification on all ranks; blocks until they are done. One caller at
  // a time. *result keeps its memory.
  absl::Status Run(const scheduler::StepPlan& plan, const VerifyInputs& inputs, StepTimes* times,
                   scheduler::StepResult* result);

  // The same for the ranks here of a group that spans processes: writes their part of
  // verify_result, which must be Reset for the plan. Draft probabilities are null also for
  // sequences that another process verifies.
  absl::Status Execute(const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                       VerifyResult* verify_result, StepTimes* times);

  // Opens draft probabilities that were received in GPU memory, for a group of one rank. Errors:
  // DraftProbs::Open's and the device's. For the caller of Run, between runs.
  absl::StatusOr<speculation::DraftProbs> OpenOnDevice(const speculation::DraftProbsShape& shape,
                                                       absl::Span<const uint8_t> bytes);

  // As RankModel's, on all ranks here; if one of them fails, none keeps any. The states are rank
  // 0's, of the last run. For the caller of Run, between runs. Unimplemented: several processes.
  absl::Status KeepStates(const std::vector<int32_t>& boundaries);
  absl::Status CopyStates(absl::Span<const model::StateCopy> copies);

  const model::ModelConfig& config() const;
  // As RankModel::options.
  const model::RankOptions& rank_options() const;
  uint64_t NumericsFingerprint() const;

 private:
  class Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_RANK_GROUP_H_
