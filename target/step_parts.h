#ifndef SPECFABRIC_TARGET_STEP_PARTS_H_
#define SPECFABRIC_TARGET_STEP_PARTS_H_

// What the processes of one group send each other for a step: the leader sends the step to every
// rank process, and each sends back what its ranks have verified.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/step_plan.h"
#include "schemas/messages.h"
#include "speculation/draft_probs.h"
#include "target/verifier.h"

namespace specfabric::target {

// The ranks [first, first + count) of a group of `ranks`.
struct RankRange {
  int ranks = 1;
  int first = 0;
  int count = 1;
  // Whether one of them verifies the sequence.
  bool Owns(const scheduler::PlanSequence& sequence) const {
    const int owner = OwnerOf(sequence, ranks);
    return owner >= first && owner < first + count;
  }
};

// The plan, with the draft probabilities that the ranks of `to` read. A view: plan and draft_probs
// must outlive it.
schemas::StepView MakeStep(const scheduler::StepPlan& plan,
                           absl::Span<const speculation::DraftProbs* const> draft_probs,
                           const RankRange& to);

// The draft probabilities of a received step; they point into the step.
struct OpenDraftProbs {
  std::vector<speculation::DraftProbs> opened;
  // [plan.sequences]; null: none, or they failed validation.
  std::vector<const speculation::DraftProbs*> by_sequence;
};

// The checks of a step that need the receiver's model: tokens within the vocabulary, moves within
// the `slots` of its cache, and the draft probabilities that `here` reads are present.
// InvalidArgument in one line.
absl::StatusOr<OpenDraftProbs> OpenStep(const schemas::Step& step, int32_t vocabulary,
                                        int64_t slots, const RankRange& here);

// The entries of verify_result that the ranks here have written.
schemas::StepDone MakeDone(const scheduler::StepPlan& plan, const VerifyResult& verify_result);

// Adds them to the leader's verify_result. InvalidArgument: they do not fit this plan. Internal:
// the step failed in that process.
absl::Status MergeDone(const scheduler::StepPlan& plan, const schemas::StepDone& done,
                       int32_t vocabulary, VerifyResult* verify_result);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_STEP_PARTS_H_
