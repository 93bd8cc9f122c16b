#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_ROUNDS_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_ROUNDS_H_

// The drafting side of the sequences' rounds: asks for a draft as a round starts, takes the
// replies, gives up those that are late, and counts what came of every request. Tells
// GoodputControl how long replies take. Whether a step waits for replies is Pacing's decision.
//
// Called by Scheduler (replies, GiveUpLate, Skip) and by StepInFlight (CatchUp, StartRounds).

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/policy/draft_orders.h"
#include "scheduler/policy/draft_selection.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

// As in SchedulerStats.
struct DraftCounts {
  uint64_t hits = 0, misses = 0, skips = 0, late = 0;
};

class DraftRounds {
 public:
  // Both must outlive it.
  DraftRounds(const SchedulerOptions& options, GoodputControl* control)
      : options_(options), control_(control) {}

  // These sequences start their next round together. Appends the DraftWanted of those that ask.
  // running: all sequences that run, these included.
  void StartRounds(absl::Span<Sequence* const> sequences, absl::Span<Sequence* const> running,
                   const PrefillLoad& prefill, base::Nanos now, std::vector<Event>* events);
  // As DraftSelection::CatchUp.
  void CatchUp(Sequence* sequence) const { selection_.CatchUp(sequence); }

  // As Scheduler's functions of these names. A sequence that is unknown is null.
  void OnDraft(uint32_t round, speculation::Draft draft, base::Nanos now, Sequence* sequence);
  void OnExtraDraft(uint32_t round, speculation::Draft draft, Sequence* sequence) const;
  void SetDrafters(uint32_t connected);
  // Whether a drafter is connected that may draft for a sequence of these sources.
  bool Asks(const DraftSources& sources) const { return (sources.drafters & drafters_) != 0; }
  // Whether the sequence was waiting for this draft.
  bool OnNoDraft(uint32_t round, Sequence* sequence);

  // Replies whose deadline has passed count as misses.
  void GiveUpLate(absl::Span<Sequence* const> running, base::Nanos now);
  // No sequence waits for its reply any longer.
  void Skip(absl::Span<Sequence* const> running, base::Nanos now);

  const DraftCounts& counts() const { return counts_; }

 private:
  void StartRound(absl::Span<Sequence* const> running, const PrefillLoad& prefill, base::Nanos now,
                  Sequence* sequence, std::vector<Event>* events);
  // The sequence's reply had not come after `waited`.
  void RecordSkipped(const Sequence& sequence, base::Nanos waited);

  const SchedulerOptions& options_;
  GoodputControl* const control_;
  DraftOrders orders_{options_, control_};
  DraftSelection selection_{options_, control_};
  DraftCounts counts_;
  uint32_t drafters_ = kAllDrafters;  // connected
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_ROUNDS_H_
