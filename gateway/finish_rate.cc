#include "gateway/finish_rate.h"

#include <algorithm>
#include <cmath>

namespace specfabric::gateway {
namespace {

constexpr double kMemory = 10;  // s in which a past finish comes to weigh 1 / e
constexpr double kLongest = 60;

double Weight(base::Nanos age) { return std::exp(-base::ToSeconds(age) / kMemory); }

}  // namespace

void FinishRate::Begin(base::Nanos now) {
  began_ = last_ = now;
  finished_ = 0;
}

void FinishRate::Finish(base::Nanos now) {
  finished_ = finished_ * Weight(now - last_) + 1;
  last_ = now;
}

int FinishRate::SecondsUntilDone(size_t pending, base::Nanos now) const {
  // What one that finished all the time, one a second, would have come to.
  const double window = kMemory * (1 - Weight(now - began_));
  // And one that is about to.
  const double finished = finished_ * Weight(now - last_) + 1;
  const double seconds = std::ceil(static_cast<double>(pending) * window / finished);
  return static_cast<int>(std::clamp(seconds, 1.0, kLongest));
}

}  // namespace specfabric::gateway
