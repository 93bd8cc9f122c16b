#ifndef SPECFABRIC_SCHEDULER_SIMULATION_ARRIVALS_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_ARRIVALS_H_

// Traces of requests for the simulator: random ones, and ones read from CSV. Pure.

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace specfabric::scheduler {

struct Arrival {
  base::Nanos time = 0;
  int32_t prompt = 0;  // tokens
  int32_t output = 0;
};

// `count` arrivals at exponential intervals. Lengths are uniform in [mean / 2, 3 mean / 2].
std::vector<Arrival> PoissonArrivals(int32_t count, double per_second, int32_t mean_prompt,
                                     int32_t mean_output, uint64_t seed);

// Lines of "seconds,prompt tokens,output tokens"; the first may be a header. InvalidArgument names
// the line.
absl::StatusOr<std::vector<Arrival>> ParseArrivals(std::string_view csv);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_ARRIVALS_H_
