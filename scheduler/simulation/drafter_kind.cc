#include "scheduler/simulation/drafter_kind.h"

#include <array>
#include <string>

#include "absl/status/status.h"

namespace specfabric::scheduler {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"model", "pard", "eagle3", "dspark"};

}  // namespace

std::string_view Name(DrafterKind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<DrafterKind> ParseDrafterKind(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<DrafterKind>(i);
  }
  return absl::InvalidArgumentError("allowed are model, pard, eagle3 and dspark");
}

bool DraftsInOnePass(DrafterKind kind) {
  return kind == DrafterKind::kPard || kind == DrafterKind::kDspark;
}

bool ReadsStates(DrafterKind kind) {
  return kind == DrafterKind::kEagle3 || kind == DrafterKind::kDspark;
}

}  // namespace specfabric::scheduler
