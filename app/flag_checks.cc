#include "app/flag_checks.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace specfabric::app {

absl::Status Flag(absl::string_view flag, absl::string_view value, const absl::Status& why) {
  return absl::InvalidArgumentError(absl::StrCat(Dashed(flag), "=", value, ": ", why.message()));
}

absl::Status ForFlag(absl::string_view flag, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(Dashed(flag), ": ", why.message()));
}

absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view flag, absl::string_view value,
                                                 const DurationRange& range) {
  absl::Duration duration;
  if (absl::ParseDuration(value, &duration) && duration >= range.least && duration <= range.most) {
    return duration;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Dashed(flag), "=", value, ": allowed are durations from ", absl::FormatDuration(range.least),
      " to ", absl::FormatDuration(range.most), " with their unit, such as 50ms or 5s"));
}

absl::Status ParseDurationFlags(std::initializer_list<DurationFlag> flags) {
  for (const DurationFlag& flag : flags) {
    const auto duration = ParseDurationFlag(flag.flag, flag.value, flag.range);
    if (!duration.ok()) return duration.status();
    *flag.parsed = absl::ToInt64Nanoseconds(*duration);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ParseSizeFlag(absl::string_view flag, absl::string_view value,
                                       uint64_t least, uint64_t most) {
  uint64_t unit = 1;
  absl::string_view number = value;
  for (const auto& [suffix, bytes] : {std::pair<absl::string_view, uint64_t>{"KiB", 1u << 10},
                                      {"MiB", 1u << 20},
                                      {"GiB", 1u << 30}}) {
    if (absl::ConsumeSuffix(&number, suffix)) {
      unit = bytes;
      break;
    }
  }
  uint64_t count = 0;
  if (absl::SimpleAtoi(number, &count) && count <= most / unit && count * unit >= least) {
    return count * unit;
  }
  return absl::InvalidArgumentError(absl::StrCat(Dashed(flag), "=", value,
                                                 ": allowed are sizes from ", least, " to ", most,
                                                 " bytes, such as 4096, 64KiB or 1GiB"));
}

}  // namespace specfabric::app
