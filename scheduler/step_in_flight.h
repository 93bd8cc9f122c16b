#ifndef SPECFABRIC_SCHEDULER_STEP_IN_FLIGHT_H_
#define SPECFABRIC_SCHEDULER_STEP_IN_FLIGHT_H_

// The step between Plan and Commit, at most one, and what its result does: tokens are committed,
// full KV blocks published, sequences that are over freed, and the others start their next round.
// Owns the list of the step's sequences and the memory of events that were given back. Called by
// Scheduler's functions of the same names.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/kv/sequence_blocks.h"
#include "scheduler/policy/admission.h"
#include "scheduler/policy/draft_rounds.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/method_choice.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace specfabric::scheduler {

class StepInFlight {
 public:
  // All must outlive it.
  StepInFlight(const SchedulerOptions& options, SequenceBlocks* blocks, Admission* admission,
               DraftRounds* rounds, GoodputControl* control, MethodChoice* methods)
      : options_(options),
        blocks_(blocks),
        admission_(admission),
        rounds_(rounds),
        control_(control),
        methods_(methods) {}

  bool any() const { return any_; }
  // The plan, whose sequences these are, is handed out now. Numbers it.
  void Begin(absl::Span<Sequence* const> sequences, base::Nanos now, StepPlan* plan);
  std::vector<Event> Commit(StepResult* result, base::Nanos now);
  std::vector<Event> Abort();
  // Events that nobody needs any more: the next Commit uses their memory.
  void Recycle(std::vector<Event> events);

 private:
  // Empty; with memory if events were given back.
  std::vector<base::TokenId> SpareTokens();
  void KeepTokens(std::vector<base::TokenId> tokens);
  // What GoodputControl needs to know of the step.
  void Survey(const StepPlan& plan);
  void ReportModes(base::Nanos now);
  void Apply(base::Nanos now, Sequence* sequence, SequenceResult* result,
             std::vector<Event>* events);
  bool Continues(Sequence* sequence, std::vector<Event>* events);

  const SchedulerOptions& options_;
  SequenceBlocks* const blocks_;
  Admission* const admission_;
  DraftRounds* const rounds_;
  GoodputControl* const control_;
  MethodChoice* const methods_;

  bool any_ = false;
  std::vector<Sequence*> sequences_;  // as in the step's plan; empty if there is no step
  uint64_t number_ = 0;               // of this step or the last; the first is 1
  base::Nanos started_ = 0;
  int32_t rows_ = 0;
  int64_t context_ = 0;    // tokens whose KV the step reads
  bool drafting_ = false;  // drafters had yet to reply as it began
  ModeStep mode_step_;     // as far as it is known before it ends
  base::Nanos ended_ = 0;  // the last step, after which some still decode; 0: none

  std::vector<Sequence*> starting_;  // scratch of Commit: sequences that start their next round
  // Empty; the memory of events that were given back.
  std::vector<Event> spare_events_;
  std::vector<std::vector<base::TokenId>> spare_tokens_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_STEP_IN_FLIGHT_H_
