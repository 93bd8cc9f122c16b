#ifndef SPECFABRIC_TESTS_SCHEDULER_FAKE_GROUP_H_
#define SPECFABRIC_TESTS_SCHEDULER_FAKE_GROUP_H_

// A target group without a model: executes step plans on a simulated KV cache, and chooses tokens
// by hashing the prefix that a row sees *in that cache*. A slot with the wrong token or position
// therefore changes the text, and is reported as well. Blocks may be shared, but not while they are
// written.

#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

// The fake model's next token after `prefix`.
base::TokenId NextToken(const std::vector<base::TokenId>& prefix, int32_t vocabulary);

// The result of a request that is alone and has no drafts.
struct Expected {
  std::vector<base::TokenId> output;  // without SequenceRequest::generated
  FinishReason finish = FinishReason::kLength;
};
Expected RunAlone(const SequenceRequest& request, const SchedulerOptions& options);

class FakeGroup {
 public:
  // `apply_moves` false: fault injection, the slot moves of a plan are not done.
  explicit FakeGroup(const SchedulerOptions& options, bool apply_moves = true);

  // Executes the plan. The cache is compared with scheduler.Committed of each sequence.
  StepResult Execute(const StepPlan& plan, const Scheduler& scheduler);
  void OnEnded(base::SequenceId id) { owned_.erase(id); }

  // Errors in plans or the cache so far, one line each.
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  struct Slot {
    base::TokenId token = base::kNoToken;
    int32_t position = -1;
  };
  using Blocks = std::vector<int32_t>;

  void Error(const std::string& what);
  void CheckShape(const StepPlan& plan);
  void CheckOwnership(const StepPlan& plan, const Scheduler& scheduler);
  void CheckWrites(const StepPlan& plan);
  void CheckMoves(const StepPlan& plan);
  void Move(const StepPlan& plan);
  int32_t Physical(const StepPlan& plan, const PlanSequence& part, int32_t slot) const;
  std::vector<base::TokenId> Visible(const StepPlan& plan, const PlanSequence& part, int row);
  SequenceResult Run(const StepPlan& plan, const PlanSequence& part, const Scheduler& scheduler);

  SchedulerOptions options_;
  bool apply_moves_;
  std::vector<Slot> cache_;
  std::map<base::SequenceId, Blocks> owned_;  // of every live sequence that was ever planned
  std::map<int32_t, int> owners_;             // how many of `owned_` hold a block
  std::vector<std::string> errors_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_TESTS_SCHEDULER_FAKE_GROUP_H_
