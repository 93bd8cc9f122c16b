#include "app/test_hooks.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace specfabric::app {

namespace {

absl::Status SetDrafterChoice(absl::string_view value, TestHooks* hooks) {
  auto policy = speculation::ParseChoicePolicy({value.data(), value.size()});
  // An oracle would have to be told the text that follows.
  if (!policy.ok() || *policy == speculation::ChoicePolicy::kOracle) {
    return absl::InvalidArgumentError("allowed are hedge, ucb1, thompson and fixed");
  }
  hooks->drafter_choice = *policy;
  return absl::OkStatus();
}

absl::Status SetAhead(absl::string_view value, TestHooks* hooks) {
  auto policy = draft::ParseAheadPolicy({value.data(), value.size()});
  if (!policy.ok() || *policy == draft::AheadPolicy::kOff) {
    return absl::InvalidArgumentError("allowed are likeliest, geometric and uniform");
  }
  hooks->ahead = *policy;
  return absl::OkStatus();
}

absl::Status SetFaults(absl::string_view value, TestHooks* hooks) {
  auto faults = transport::ParseFaults(value);
  if (!faults.ok()) return faults.status();
  hooks->faults = *faults;
  return absl::OkStatus();
}

absl::Status SetHook(absl::string_view name, absl::string_view value, TestHooks* hooks) {
  if (name == "drafter_choice") return SetDrafterChoice(value, hooks);
  if (name == "ahead") return SetAhead(value, hooks);
  if (name == "faults") return SetFaults(value, hooks);
  return absl::InvalidArgumentError("allowed are drafter_choice, ahead and faults");
}

}  // namespace

absl::StatusOr<TestHooks> ParseTestHooks(absl::string_view text) {
  TestHooks hooks;
  for (absl::string_view part : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> hook =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (absl::Status set = SetHook(hook.first, hook.second, &hooks); !set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kTestHooksVariable, ": ", part, ": ", set.message()));
    }
  }
  return hooks;
}

absl::StatusOr<TestHooks> ReadTestHooks() {
  const char* text = std::getenv(kTestHooksVariable);
  return ParseTestHooks(text == nullptr ? "" : text);
}

}  // namespace specfabric::app
