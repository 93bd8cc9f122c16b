#ifndef SPECFABRIC_BASE_CLOCK_H_
#define SPECFABRIC_BASE_CLOCK_H_

// Time as a plain number of nanoseconds on the monotonic clock. Pure layers (scheduler,
// speculation) take it as an argument and never call Now().

#include <chrono>
#include <cstdint>

namespace specfabric::base {

using Nanos = int64_t;
constexpr Nanos kMicrosecond = 1'000;
constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kSecond = 1'000'000'000;
constexpr Nanos kForever = INT64_MAX;  // later than any time

inline Nanos Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double ToSeconds(Nanos t) { return static_cast<double>(t) * 1e-9; }

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_CLOCK_H_
