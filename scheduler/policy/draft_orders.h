#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_ORDERS_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_ORDERS_H_

// What the sequences that start a round together ask of drafters: one order for each RoundKind,
// computed by GoodputControl when the first sequence of that kind asks, and apart from it the
// orders of the few that explore. Owned and called by DraftRounds.

#include <array>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

class DraftOrders {
 public:
  // Both must outlive it.
  DraftOrders(const SchedulerOptions& options, GoodputControl* control)
      : options_(options), control_(control) {}

  // Other sequences start their rounds: their orders are computed anew. drafters: bit set of those
  // that are connected.
  void Clear(uint32_t drafters) {
    orders_.fill(std::nullopt);
    drafters_ = drafters;
  }
  // The order of the next sequence of this kind. Valid until the next call. running,
  // prefill: as they are when the round starts, the same for all sequences of the round.
  const DraftOrder& Take(RoundKind kind, absl::Span<Sequence* const> running,
                         const PrefillLoad& prefill) {
    std::optional<DraftOrder>& order = orders_[kind.index()];
    if (!order) order = Compute(kind, running, prefill);
    return order->explorer < 0 ? *order : TakeOwn(kind, &*order);
  }

 private:
  // The order of one sequence of a round in which one explores.
  const DraftOrder& TakeOwn(RoundKind kind, DraftOrder* order);
  DraftOrder Compute(RoundKind kind, absl::Span<Sequence* const> running,
                     const PrefillLoad& prefill);
  void SetReplyTimeout(RoundKind kind, const StepBase& step, DraftOrder* order) const;

  const SchedulerOptions& options_;
  GoodputControl* const control_;
  std::array<std::optional<DraftOrder>, kRoundKinds> orders_;
  uint32_t drafters_ = 0;   // connected: bit set
  DraftOrder other_order_;  // of a sequence that explores
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_ORDERS_H_
