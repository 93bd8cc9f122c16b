#ifndef SPECFABRIC_TARGET_RANK_GROUP_H_
#define SPECFABRIC_TARGET_RANK_GROUP_H_

// The ranks of one tensor-parallel group that this process holds: a thread for each, which owns its
// shard of the weights and of the KV cache and its verification buffers. The leader hands all of
// them the same plan. Ranks in other processes: target/group_leader.h, target/rank_service.h.

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
  // Of a group that spans processes: what joins them, which must outlive the ranks, and those of
  // the group's ranks that are here. Null: all are.
  model::ProcessExchange* exchange = nullptr;
  int first_rank = 0, rank_count = 0;

  model::GroupShape shape() const { return {tensor_parallel, rank.pipeline_stages}; }
};

// Where the time of one step went, on rank 0.
struct StepTimes {
  base::Nanos forward = 0;
  base::Nanos verify = 0;
};

class RankGroup {
 public:
  // Loads every shard, each on its own thread; with `exchange` at the same time as the other
  // processes. Errors are RankModel::Load's. Aborted: the reason is in another process.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Start(const RankGroupOptions& options);
  ~RankGroup();  // joins the ranks

  // Moves, forward pass and verification on all ranks; blocks until they are done. One caller.
  // draft_probs: [plan.sequences], of the drafts; see RankVerifier::Verify.
  absl::StatusOr<scheduler::StepResult> Run(
      const scheduler::StepPlan& plan, absl::Span<const speculation::DraftProbs* const> draft_probs,
      StepTimes* times);

  // The same for ranks of a group that spans processes: their part of the verify_result, which is
  // Reset for the plan. draft_probs: null too where another process decides.
  absl::Status Execute(const scheduler::StepPlan& plan,
                       absl::Span<const speculation::DraftProbs* const> draft_probs,
                       VerifyResult* verify_result, StepTimes* times);

  // Received draft_probs in the memory of the GPU of a group of one rank. Errors as
  // DraftProbs::Open's, and the device's own. The caller of Run, between runs.
  absl::StatusOr<speculation::DraftProbs> OpenOnDevice(const speculation::DraftProbsShape& shape,
                                                       absl::Span<const uint8_t> bytes);

  const model::ModelConfig& config() const;
  uint64_t NumericsFingerprint() const;

 private:
  class Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_RANK_GROUP_H_
