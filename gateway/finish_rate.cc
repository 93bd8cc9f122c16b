#include "gateway/finish_rate.h"

#include <algorithm>
#include <cmath>

namespace specfabric::gateway {
namespace {

constexpr double kTimeConstant = 10;  // seconds, of the exponential decay of past finishes
constexpr double kLongest = 60;

double Decay(base::Nanos age) { return std::exp(-base::ToSeconds(age) / kTimeConstant); }

}  // namespace

void FinishRate::Begin(base::Nanos now) {
  began_ = last_ = now;
  finished_ = 0;
}

void FinishRate::Finish(base::Nanos now) {
  finished_ = finished_ * Decay(now - last_) + 1;
  last_ = now;
}

int FinishRate::SecondsUntilDone(size_t pending, base::Nanos now) const {
  // The value that finished_ would have at one finish a second since began_.
  const double window = kTimeConstant * (1 - Decay(now - began_));
  // Counts one more finish, so that the rate is never 0.
  const double finished = finished_ * Decay(now - last_) + 1;
  const double seconds = std::ceil(static_cast<double>(pending) * window / finished);
  return static_cast<int>(std::clamp(seconds, 1.0, kLongest));
}

}  // namespace specfabric::gateway
