#include "scheduler/simulation/arrivals.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"

namespace specfabric::scheduler {
namespace {

double Uniform(uint64_t* state) {
  *state = base::Mix64(*state);
  return (static_cast<double>(*state >> 11) + 0.5) * 0x1p-53;
}

int32_t Length(int32_t mean, uint64_t* state) {
  return std::max(1, static_cast<int32_t>(std::lround(mean * (0.5 + Uniform(state)))));
}

}  // namespace

std::vector<Arrival> PoissonArrivals(int32_t count, double per_second, int32_t mean_prompt,
                                     int32_t mean_output, uint64_t seed) {
  std::vector<Arrival> arrivals;
  uint64_t state = base::Mix64(seed);
  double seconds = 0;
  for (int32_t i = 0; i < count; ++i) {
    seconds -= std::log(Uniform(&state)) / per_second;
    const int32_t prompt = Length(mean_prompt, &state);
    arrivals.push_back(
        {static_cast<base::Nanos>(seconds * 1e9), prompt, Length(mean_output, &state)});
  }
  return arrivals;
}

absl::StatusOr<std::vector<Arrival>> ParseArrivals(std::string_view csv) {
  std::vector<Arrival> arrivals;
  int number = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(std::string(csv), '\n'))) {
    ++number;
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (fields.size() == 1 && fields[0].find_first_not_of(" \r") == std::string::npos) continue;
    double seconds = 0;
    Arrival arrival;
    const bool good = fields.size() == 3 && absl::SimpleAtod(fields[0], &seconds) &&
                      absl::SimpleAtoi(fields[1], &arrival.prompt) &&
                      absl::SimpleAtoi(fields[2], &arrival.output) && seconds >= 0 &&
                      seconds < 1e9 && arrival.prompt > 0 && arrival.output > 0;
    if (!good && number == 1 && !absl::SimpleAtod(fields[0], &seconds)) continue;  // a header
    arrival.time = good ? static_cast<base::Nanos>(seconds * 1e9) : 0;
    if (!good || (!arrivals.empty() && arrival.time < arrivals.back().time)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, " is '", line,
          "': must be seconds (not before the line above), prompt tokens and output tokens"));
    }
    arrivals.push_back(arrival);
  }
  return arrivals;
}

}  // namespace specfabric::scheduler
