#include "scheduler/simulation/draft_place.h"

#include <array>

#include "absl/status/status.h"

namespace specfabric::scheduler {
namespace {

constexpr std::array<std::string_view, 3> kPlaces = {"apart", "turns", "shared"};

}  // namespace

std::string_view Name(DraftPlace place) { return kPlaces[static_cast<size_t>(place)]; }

absl::StatusOr<DraftPlace> ParseDraftPlace(std::string_view name) {
  for (size_t i = 0; i < kPlaces.size(); ++i) {
    if (name == kPlaces[i]) return static_cast<DraftPlace>(i);
  }
  return absl::InvalidArgumentError("allowed are apart, turns and shared");
}

}  // namespace specfabric::scheduler
