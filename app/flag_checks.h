#ifndef SPECFABRIC_APP_FLAG_CHECKS_H_
#define SPECFABRIC_APP_FLAG_CHECKS_H_

// Checks of flag values. Every error is InvalidArgument and one line: what was given, and what is
// allowed.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "app/command_line.h"
#include "base/clock.h"

namespace specfabric::app {

template <typename T>
absl::Status InRange(absl::string_view flag, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Dashed(flag), "=", value, ": allowed are ", least, " to ", most));
}

// A parser's refusal of a flag's value.
absl::Status Flag(absl::string_view flag, absl::string_view value, const absl::Status& why);

// An error of something that was done for a flag, with the flag's name.
absl::Status ForFlag(absl::string_view flag, const absl::Status& why);

struct DurationRange {
  absl::Duration least = absl::ZeroDuration();
  absl::Duration most = absl::Hours(24);
};

// Of --max_draft_wait, a target's and the simulator's.
inline constexpr DurationRange kDraftWaitRange = {.most = absl::Minutes(1)};

// A duration with its unit, as in "50ms", "1.5s" or "1m30s"; only 0 needs no unit.
absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view flag, absl::string_view value,
                                                 const DurationRange& range = {});

// A flag that holds a duration, and where its value goes.
struct DurationFlag {
  absl::string_view flag;
  const std::string& value;
  base::Nanos* parsed;
  DurationRange range = {};
};
// Parses each as ParseDurationFlag does, up to the first that is refused.
absl::Status ParseDurationFlags(std::initializer_list<DurationFlag> flags);

// A size in bytes, as in "64KiB" or "1GiB"; a number without a unit is of bytes.
absl::StatusOr<uint64_t> ParseSizeFlag(absl::string_view flag, absl::string_view value,
                                       uint64_t least, uint64_t most);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_FLAG_CHECKS_H_
