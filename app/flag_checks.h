#ifndef SPECFABRIC_APP_FLAG_CHECKS_H_
#define SPECFABRIC_APP_FLAG_CHECKS_H_

// What is said of a flag's value that is not allowed: what was given, and what is.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace specfabric::app {

template <typename T>
absl::Status InRange(absl::string_view flag, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": allowed are ", least, " to ", most));
}

// What is wrong with a flag whose value a parser refused.
inline absl::Status Flag(absl::string_view flag, absl::string_view value, const absl::Status& why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", why.message()));
}

// An error of something that was done for a flag, with the flag's name.
inline absl::Status ForFlag(absl::string_view flag, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("--", flag, ": ", why.message()));
}

inline base::Nanos FromSeconds(double seconds) { return static_cast<base::Nanos>(seconds * 1e9); }

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_FLAG_CHECKS_H_
