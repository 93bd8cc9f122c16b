#ifndef SPECFABRIC_SCHEDULER_SIMULATION_DRAFT_PLACE_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_DRAFT_PLACE_H_

// Where a modelled drafter runs. In the places beside its target a target has a drafter of its own,
// and there is no network between them.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace specfabric::scheduler {

enum class DraftPlace : uint8_t {
  kApart,   // on devices that no target uses
  kTurns,   // on its target's, in turns with its steps, as one process would; nothing is drafted
            // ahead
  kShared,  // on its target's, as a process of its own: passes run at once, and slower
};

std::string_view Name(DraftPlace place);
// InvalidArgument: the names.
absl::StatusOr<DraftPlace> ParseDraftPlace(std::string_view name);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_DRAFT_PLACE_H_
