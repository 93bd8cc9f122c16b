#ifndef SPECFABRIC_TARGET_STEP_PARTS_H_
#define SPECFABRIC_TARGET_STEP_PARTS_H_

// One step of a group that spans processes, as its parts travel: out to a rank process, and what
// its ranks have found back to the leader.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/step_plan.h"
#include "schemas/messages.h"
#include "speculation/draft_probs.h"
#include "target/verifier.h"

namespace specfabric::target {

// Which ranks of how many.
struct RankRange {
  int ranks = 1;
  int first = 0;
  int count = 1;
  // Whether one of them decides the sequence.
  bool Owns(const scheduler::PlanSequence& sequence) const {
    const int owner = OwnerOf(sequence, ranks);
    return owner >= first && owner < first + count;
  }
};

// The plan, with the draft_probs that the ranks of `to` read.
schemas::Step MakeStep(const scheduler::StepPlan& plan,
                       absl::Span<const speculation::DraftProbs* const> draft_probs,
                       const RankRange& to);

// A received step's draft_probs, which lie in the step.
struct OpenDraftProbs {
  std::vector<speculation::DraftProbs> opened;
  // [plan.sequences], null: none, or no longer sound.
  std::vector<const speculation::DraftProbs*> by_sequence;
};

// What of a step only its receiver can tell: that tokens are of its vocabulary, moves within the
// `slots` of its cache, and that the draft_probs are there which `here` reads. InvalidArgument in
// one line.
absl::StatusOr<OpenDraftProbs> OpenStep(const schemas::Step& step, int32_t vocabulary,
                                        int64_t slots, const RankRange& here);

// The entries of the verify_result that were written.
schemas::StepDone MakeDone(const scheduler::StepPlan& plan, const VerifyResult& verify_result);

// Adds them to the leader's. InvalidArgument: they are not of this plan. Internal: the step has
// failed there.
absl::Status MergeDone(const scheduler::StepPlan& plan, const schemas::StepDone& done,
                       int32_t vocabulary, VerifyResult* verify_result);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_STEP_PARTS_H_
