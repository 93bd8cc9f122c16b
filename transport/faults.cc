#include "transport/faults.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace specfabric::transport {
namespace {

absl::Status ParseProbability(absl::string_view part, absl::string_view text, double* probability) {
  double value = 0;
  // Written so that "nan" is refused too.
  if (absl::SimpleAtod(text, &value) && value >= 0 && value <= 1) {
    *probability = value;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", part, "': allowed are probabilities from 0 to 1"));
}

// "5ms" or "5ms:.1".
absl::Status ParseDelay(absl::string_view part, absl::string_view text, FaultOptions* faults) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  absl::Duration delay;
  if (!absl::ParseDuration(std::string(halves.first), &delay) || delay < absl::ZeroDuration() ||
      delay > absl::Nanoseconds(kMaxFaultDelay)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", part, "': allowed are delays from 0 to ", kMaxFaultDelay / base::kSecond,
        "s such as 250us, 5ms or 1s, each also with a part of the frames as in 5ms:.1"));
  }
  faults->delay = absl::ToInt64Nanoseconds(delay);
  faults->delay_part = 1;
  if (halves.first.size() == text.size()) return absl::OkStatus();
  return ParseProbability(part, halves.second, &faults->delay_part);
}

absl::Status ParsePart(absl::string_view part, FaultOptions* faults) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(part, absl::MaxSplits('=', 1));
  const auto& [name, value] = halves;
  if (name == "drop") return ParseProbability(part, value, &faults->drop);
  if (name == "duplicate") return ParseProbability(part, value, &faults->duplicate);
  if (name == "reorder") return ParseProbability(part, value, &faults->reorder);
  if (name == "corrupt") return ParseProbability(part, value, &faults->corrupt);
  if (name == "delay") return ParseDelay(part, value, faults);
  if (name == "seed") {
    if (absl::SimpleAtoi(value, &faults->seed)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("'", part, "': allowed are whole numbers from 0 to ", UINT64_MAX));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", part,
                   "': allowed are drop=, duplicate=, reorder= and corrupt= with a probability, "
                   "delay=TIME or delay=TIME:PROBABILITY, and seed=NUMBER"));
}

}  // namespace

bool FaultOptions::any() const {
  return simulated_rtt > 0 || drop > 0 || duplicate > 0 || reorder > 0 || corrupt > 0 ||
         (delay > 0 && delay_part > 0);
}

absl::StatusOr<FaultOptions> ParseFaults(absl::string_view text) {
  FaultOptions faults;
  if (text.empty()) return faults;
  std::set<std::string> seen;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    if (absl::Status parsed = ParsePart(part, &faults); !parsed.ok()) return parsed;
    if (!seen.emplace(part.substr(0, part.find('='))).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "': allowed is each kind of fault once"));
    }
  }
  return faults;
}

FaultInjector::FaultInjector(const FaultOptions& options)
    : options_(options), random_(options.seed) {}

bool FaultInjector::Chance(double probability) {
  // The upper 53 bits as a number in [0, 1): standard distributions may differ between libraries.
  return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

base::Nanos FaultInjector::ExtraDelay() {
  const bool reordered = Chance(options_.reorder);
  const bool delayed = Chance(options_.delay_part);
  return (reordered ? options_.reorder_delay : 0) + (delayed ? options_.delay : 0);
}

FaultDecision FaultInjector::Decide(uint32_t payload_bytes) {
  const bool drop = Chance(options_.drop);
  const bool duplicate = Chance(options_.duplicate);
  const bool corrupt = Chance(options_.corrupt);
  const uint64_t where = random_();
  const uint64_t with = random_();
  const base::Nanos first = ExtraDelay();
  const base::Nanos second = ExtraDelay();

  FaultDecision decision;
  if (drop) {
    decision.copies = 0;
    decision.faulty = true;
    return decision;
  }
  decision.copies = duplicate ? 2 : 1;
  decision.delay = options_.simulated_rtt / 2 + first;
  if (duplicate) decision.copy_delay = options_.simulated_rtt / 2 + second;
  if (corrupt && payload_bytes > 0) {
    decision.corrupt = true;
    decision.corrupt_at = static_cast<uint32_t>(where % payload_bytes);
    decision.corrupt_with = static_cast<uint8_t>(1 + with % 255);
  }
  decision.faulty = duplicate || decision.corrupt || first > 0;
  return decision;
}

}  // namespace specfabric::transport
