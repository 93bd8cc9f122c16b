#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_SELECTION_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_SELECTION_H_

// The draft tokens that a sequence may verify in its round (Sequence::draft) and their expected
// gains: the grammar's or the n-gram lookup's as the round begins, then a drafter's once it has
// replied, either merged or the better of both, where the verification method decides which. How
// many of them a step verifies is StepPlanner's decision. Owned and called by DraftRounds.

#include <vector>

#include "scheduler/policy/goodput.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

class DraftSelection {
 public:
  // Both must outlive it.
  DraftSelection(const SchedulerOptions& options, GoodputControl* control)
      : options_(options), control_(control) {}

  // Appends to the sequence's n-gram lookup the tokens that are committed (while it prefills: those
  // whose KV is written) and not in it yet. Does nothing where the n-gram lookup is off.
  void CatchUp(Sequence* sequence) const;
  // The draft that the sequence has as its round begins: the tokens that its grammar forces, or
  // else what the n-gram lookup finds, if anything. Returns how many of its tokens are expected to
  // be accepted.
  float Propose(Sequence* sequence) const;
  // A drafter's reply for the round.
  void Take(speculation::Draft draft, Sequence* sequence);
  // A reply for an earlier round: it is only learned from.
  void LearnFromStale(speculation::Draft draft, const Sequence& sequence);
  // Another drafter's reply for the round, where the verification method merges trees.
  void Merge(speculation::Draft draft, Sequence* sequence) const;

 private:
  // Draft tokens below the root that the sequence could verify.
  int32_t UsefulNodes(const Sequence& sequence) const {
    return sequence.useful_draft_nodes(options_.max_tree_nodes);
  }

  const SchedulerOptions& options_;
  GoodputControl* const control_;
  std::vector<float> spare_gain_;  // scratch, kept for its memory
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_SELECTION_H_
