#ifndef SPECFABRIC_TARGET_VERIFIER_H_
#define SPECFABRIC_TARGET_VERIFIER_H_

// One rank's part of choosing tokens from a step's logits (design.md, Couplings). Rows that need
// neither filters, changed logits nor log-probabilities cross ranks as one (score, id) pair; the
// others are gathered whole on the sequence's owner rank, which works alone.

#include <vector>

#include "model/communicator.h"
#include "model/rank_model.h"
#include "scheduler/step_plan.h"
#include "speculation/logit_rules.h"

namespace specfabric::target {

// What the ranks of a group find together, aligned with StepPlan::logit_rows. The leader sizes it
// before the step; every entry is written by exactly one rank (rank 0, or the owner of the row).
struct Verdict {
  std::vector<base::TokenId> chosen;          // [logit_rows], kNoToken where nothing is chosen
  std::vector<base::TokenLogprobs> logprobs;  // [logit_rows] of the chosen or the scored token

  void Reset(size_t logit_rows);
};

// Turns chosen tokens into accepted paths: the coupled rule. Called by the leader.
scheduler::StepResult Accept(const scheduler::StepPlan& plan, const Verdict& verdict);

// Owned by one rank's thread; keeps its scratch memory from step to step.
class RankVerifier {
 public:
  RankVerifier(model::Communicator* communicator, int32_t vocabulary)
      : communicator_(communicator), vocabulary_(vocabulary), changer_(vocabulary) {}

  // Every rank of the group calls this with the same plan and its own shard of the logits.
  void Verify(const scheduler::StepPlan& plan, const model::LogitShard& logits, Verdict* verdict);

 private:
  // Why a logit row is looked at, and by which path.
  struct RowTask {
    int32_t sequence = 0;  // index in plan.sequences
    int32_t logit = 0;     // index in plan.logit_rows
    bool chooses = false;
  };

  void SplitRows(const scheduler::StepPlan& plan);
  void ChooseSharded(const scheduler::StepPlan& plan, const model::LogitShard& logits,
                     Verdict* verdict);
  void ChooseWhole(const scheduler::StepPlan& plan, const model::LogitShard& logits,
                   Verdict* verdict);
  void FinishRow(const scheduler::StepPlan& plan, const RowTask& task, absl::Span<const float> row,
                 Verdict* verdict);
  // The row after the request's penalties, bias and barred ids; `row` itself if there are none.
  absl::Span<const float> Changed(const scheduler::StepPlan& plan, const RowTask& task,
                                  absl::Span<const float> row);
  // Noise for one sequence and position over ids first .. first + width, made once for all nodes of
  // the same depth.
  absl::Span<const float> Noise(const base::SamplingParams& sampling, int32_t sequence,
                                int32_t position, base::TokenId first, int32_t width);

  model::Communicator* const communicator_;
  const int32_t vocabulary_;
  std::vector<RowTask> sharded_;
  std::vector<RowTask> whole_;
  std::vector<speculation::ScoredToken> pairs_;
  std::vector<float> shard_rows_;
  std::vector<float> whole_rows_;
  std::vector<int> owners_;
  struct NoiseRow {
    int32_t sequence = -1;
    int32_t position = -1;
    std::vector<float> values;
  };
  std::vector<NoiseRow> noise_;  // of the sequence at hand, one for each position seen
  size_t noise_used_ = 0;
  speculation::LogitChanger changer_;
  int32_t changer_sequence_ = -1;  // index in plan.sequences that changer_ is open for
  std::vector<base::TokenId> path_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_VERIFIER_H_
