#ifndef SPECFABRIC_SCHEDULER_SIMULATION_DRAFTER_KIND_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_DRAFTER_KIND_H_

// The kinds of drafter (docs/drafters.md), as far as a modelled draft worker tells them apart.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace specfabric::scheduler {

enum class DrafterKind : uint8_t {
  kModel,   // an independent draft model
  kPard,    // a parallel draft model
  kEagle3,  // EAGLE-3
  kDspark,  // DSpark, or DFlash: block drafters
};

std::string_view Name(DrafterKind kind);
// InvalidArgument: what was given, and the names.
absl::StatusOr<DrafterKind> ParseDrafterKind(std::string_view name);

// One pass gives all levels of a tree; of the others, each pass gives one.
bool DraftsInOnePass(DrafterKind kind);
// It drafts from the target's hidden states of all committed tokens but the last, waits for them,
// and cannot go ahead: what is not committed has none.
bool ReadsStates(DrafterKind kind);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_DRAFTER_KIND_H_
