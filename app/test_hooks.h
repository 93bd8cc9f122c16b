#ifndef SPECFABRIC_APP_TEST_HOOKS_H_
#define SPECFABRIC_APP_TEST_HOOKS_H_

// Choices that only tests and benchmarks make. They come from one environment variable, because an
// operator has no use for them as flags (docs/development.md).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "draft/ahead_plan.h"
#include "speculation/drafter_choice.h"
#include "transport/faults.h"

namespace specfabric::app {

inline constexpr char kTestHooksVariable[] = "SPECFABRIC_TEST_HOOKS";

struct TestHooks {
  // How a target chooses among several draft models.
  speculation::ChoicePolicy drafter_choice = speculation::ChoicePolicy::kHedge;
  // How a draft worker spends the time until a commit, unless --ahead=false.
  draft::AheadPolicy ahead = draft::AheadPolicy::kLikeliest;
  // Fault injection into the frames that a draft worker sends. Faults of a draft cost speed and
  // never change the text; those of a gateway or a target would.
  transport::FaultOptions faults;
};

// "name=value" separated by semicolons, as in "drafter_choice=ucb1;faults=drop=.1,seed=5".
// InvalidArgument: one line with what was given and what is allowed.
absl::StatusOr<TestHooks> ParseTestHooks(absl::string_view text);

// Those of this process's environment.
absl::StatusOr<TestHooks> ReadTestHooks();

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_TEST_HOOKS_H_
