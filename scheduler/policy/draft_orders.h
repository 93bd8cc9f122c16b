#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_ORDERS_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_ORDERS_H_

// What the sequences that start a round together ask of drafters: one order for each verification
// method, computed by GoodputControl when the first sequence of that method asks, and apart from it
// the orders of the few that explore. Owned and called by DraftRounds.

#include <array>
#include <cstddef>
#include <optional>

#include "absl/types/span.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/prefill_load.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

class DraftOrders {
 public:
  // Both must outlive it.
  DraftOrders(const SchedulerOptions& options, GoodputControl* control)
      : options_(options), control_(control) {}

  // Other sequences start their rounds: their orders are computed anew.
  void Clear() { orders_.fill(std::nullopt); }
  // The order of the next sequence of this verification method. Valid until the next call. running,
  // prefill: as they are when the round starts, the same for all sequences of the round.
  const DraftOrder& Take(speculation::VerificationMethod verification,
                         absl::Span<Sequence* const> running, const PrefillLoad& prefill) {
    std::optional<DraftOrder>& order = orders_[static_cast<size_t>(verification)];
    if (!order) order = Compute(verification, running, prefill);
    return order->explorer < 0 ? *order : TakeOwn(verification, &*order);
  }

 private:
  // The order of one sequence of a round in which one explores.
  const DraftOrder& TakeOwn(speculation::VerificationMethod verification, DraftOrder* order);
  DraftOrder Compute(speculation::VerificationMethod verification,
                     absl::Span<Sequence* const> running, const PrefillLoad& prefill);
  void SetReplyTimeout(speculation::VerificationMethod verification, const StepBase& step,
                       DraftOrder* order) const;

  const SchedulerOptions& options_;
  GoodputControl* const control_;
  std::array<std::optional<DraftOrder>, speculation::kVerificationMethods> orders_;
  DraftOrder other_order_;  // of a sequence that explores
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_ORDERS_H_
