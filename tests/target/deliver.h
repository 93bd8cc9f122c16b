#ifndef SPECFABRIC_TESTS_TARGET_DELIVER_H_
#define SPECFABRIC_TESTS_TARGET_DELIVER_H_

// Hands to a scheduler what a DraftPool has found out, as the target engine does.

#include <optional>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "target/drafter.h"

namespace specfabric::target {

inline void Deliver(const std::optional<NoDraft>& none, scheduler::Scheduler* scheduler) {
  if (none) scheduler->OnNoDraft(none->id, none->round);
}

// Whether it was a tree for a round that is in flight.
inline bool Deliver(std::optional<DraftEvent> event, base::Nanos now,
                    scheduler::Scheduler* scheduler) {
  if (!event) return false;
  if (const auto* none = std::get_if<NoDraft>(&*event)) {
    Deliver(*none, scheduler);
    return false;
  }
  auto& arrived = std::get<DraftArrived>(*event);
  if (arrived.extra) {
    scheduler->OnExtraDraft(arrived.id, arrived.round, std::move(arrived.draft));
  } else {
    scheduler->OnDraft(arrived.id, arrived.round, std::move(arrived.draft), now);
  }
  return arrived.times.has_value();
}

}  // namespace specfabric::target

#endif  // SPECFABRIC_TESTS_TARGET_DELIVER_H_
