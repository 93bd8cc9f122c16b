#ifndef SPECFABRIC_SCHEDULER_SCHEDULER_IMPL_H_
#define SPECFABRIC_SCHEDULER_SCHEDULER_IMPL_H_

// The scheduler's state, and the steps that Plan and Commit are made of: admission.cc decides who
// runs, pacing.cc when a step starts, planning.cc what it holds, scheduler.cc what its result
// does.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "scheduler/kv/sequence_blocks.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/tenant_shares.h"
#include "scheduler/policy/wait_queue.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

// How many sequences ahead of the one at hand a loop has the next ones brought into the cache:
// first them, then what they point to.
constexpr size_t kPrefetchSequence = 8, kPrefetchContents = 3;

struct Scheduler::Impl {
  explicit Impl(const SchedulerOptions& given);

  // admission.cc
  absl::Status CheckRequest(const SequenceRequest& request) const;
  void Admit();
  bool TakePrefillBlocks(Sequence* sequence);
  // Takes blocks for `slots`, from those that come after the sequence if need be; false if not even
  // that helps.
  bool MakeRoom(int32_t slots, Sequence* sequence, StepPlan* plan);
  // Blocks that would be free without all running sequences that come after this one.
  int32_t BlocksBehind(const Sequence& sequence);
  void Preempt(Sequence* sequence, StepPlan* plan);

  // pacing.cc
  void GiveUpLateDrafts(base::Nanos now);
  // Until when a step had better not start yet, if so. Otherwise those that wait for a draft may
  // have been made to go on without it.
  std::optional<base::Nanos> HoldUntil(base::Nanos now);
  bool AnyWaiting() const;  // for a draft
  base::Nanos BestDelay(const GainHistogram& gains, StepBase step, double rate, base::Nanos now);
  // No sequence waits any longer.
  void SkipDrafts(base::Nanos now);
  // Its reply had not come after `waited`.
  void RecordSkipped(const Sequence& sequence, base::Nanos waited);
  // Of a sequence that starts a round; valid until the next call.
  const DraftOrder& TakeOrder(speculation::VerificationMethod verification);
  void SetReplyTimeout(speculation::VerificationMethod verification, DraftOrder* order) const;
  void StartRound(Sequence* sequence, base::Nanos now, std::vector<Event>* events);

  // round_draft.cc
  // Shows the n-gram lookup what of the sequence is known and computed.
  void CatchUp(Sequence* sequence) const;
  // The round's first draft tokenes: the n-gram lookup's, if any.
  void ProposeFromNgramLookup(Sequence* sequence);
  // A drafter's reply of this round, or (stale) of one that is over.
  void TakeDraft(speculation::Draft draft, bool stale, Sequence* sequence);
  // Another's, where trees may be merged.
  void AddDraft(speculation::Draft draft, Sequence* sequence);

  // planning.cc
  void PlanRunning(base::Nanos now, StepPlan* plan);
  // The step of those in `ready`, without their guesses, which go to `gains`.
  StepBase ReadyStep(base::Nanos now, GainHistogram* gains) const;
  // Whether to verify one half of what is in `step` at a time pays; of `ready` they are or some.
  bool CohortsPay(const GainHistogram& gains, const StepBase& step) const;
  // Whether one half of `ready` is to be left for the next step.
  bool LeavesHalf(const GainHistogram& gains, const StepBase& step);
  void CollectReady(StepPlan* plan);
  void CountPrefill();
  // Rows of prefill that a step could take beside `rows` others.
  int32_t PrefillRows(int32_t rows) const;
  int32_t MaxTreeRows() const;
  // Adds so many of them to a step that has no max_rows yet.
  void AddPrefill(int32_t rows, StepBase* step) const;
  void PlanPrefills(StepPlan* plan);
  // Whether the sequence, which could prefill `rows`, had better wait for what `filling` computes.
  bool WaitsForSharedPrefix(int32_t rows, Sequence* sequence);
  void RecordFilling(int32_t rows, Sequence* sequence);
  base::Nanos EarliestDeadline() const;

  // scheduler.cc
  Sequence* Find(base::SequenceId id) const {
    const auto it = sequences.find(id);
    return it == sequences.end() ? nullptr : it->second.get();
  }
  // With room for any step.
  StepPlan EmptyPlan();
  bool Continues(Sequence* sequence, std::vector<Event>* events);
  void End(base::SequenceId id, std::vector<Event>* events);
  void EndWithoutTokens(Sequence* sequence, FinishReason reason, std::vector<Event>* events);
  void Check() const;

  SchedulerOptions options;
  SequenceBlocks blocks;
  std::unordered_map<base::SequenceId, std::unique_ptr<Sequence>> sequences;
  TenantShares shares;
  WaitQueue waiting{&shares};
  std::vector<Sequence*> running;  // admitted, by queue order
  uint64_t arrivals = 0;
  // The next of the queue that did not fit last time, and the blocks there were: not to be looked
  // at again before there are more.
  base::SequenceId refused = 0;
  int32_t refused_available = -1;

  std::vector<Sequence*> in_flight;  // as in the step's plan
  bool step_in_flight = false;
  uint64_t step = 0;
  base::Nanos step_started = 0;
  int32_t step_rows = 0;
  int64_t step_context = 0;
  GoodputControl control;
  // Of the round that the present Commit starts, for each verification method once it is asked for.
  std::array<std::optional<DraftOrder>, speculation::kVerificationMethods> orders;
  DraftOrder other_order;      // of a sequence that asks for something else than these
  int64_t prefill_left = 0;    // rows, of all that run; as counted by the present Plan
  base::Nanos hold_until = 0;  // as last decided; 0: to be decided anew
  bool cohorts = false;    // one half is verified while the drafts of the other are on their way
  SchedulerStats counted;  // only what grows

  // Empty; their memory serves the next ones.
  StepPlan spare_plan;
  std::vector<Event> spare_events;

  // Scratch of one Plan, kept for its memory.
  struct Pending {
    base::Nanos expected = 0;
    double tokens = 0, rows = 0;  // that its draft adds
  };
  std::vector<Pending> pending;
  std::vector<Sequence*> ready;
  std::vector<int32_t> nodes;
  std::vector<float> spare_gain;
  std::vector<int32_t> owners_behind;  // [blocks], 0 between calls
  std::vector<BlockKey> filling;  // of blocks that prefills of the step so far will have filled
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SCHEDULER_IMPL_H_
