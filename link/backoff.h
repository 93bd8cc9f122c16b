#ifndef SPECFABRIC_LINK_BACKOFF_H_
#define SPECFABRIC_LINK_BACKOFF_H_

#include <algorithm>
#include <cstdint>
#include <random>

#include "base/clock.h"

namespace specfabric::link {

// Waits between attempts: doubling from `minimum` to `maximum`, each drawn from [1/2, 3/2) of its
// length so that the clients of a restarted server do not reconnect at the same time.
class Backoff {
 public:
  Backoff(base::Nanos minimum, base::Nanos maximum, uint64_t seed)
      : minimum_(std::max<base::Nanos>(minimum, 1)),
        maximum_(std::max(maximum, minimum_)),
        next_(minimum_),
        random_(seed) {}

  base::Nanos Next() {
    const base::Nanos base = next_;
    next_ = next_ > maximum_ / 2 ? maximum_ : 2 * next_;
    return base / 2 + std::uniform_int_distribution<base::Nanos>(0, base - 1)(random_);
  }
  void Reset() { next_ = minimum_; }

 private:
  base::Nanos minimum_, maximum_, next_;
  std::mt19937_64 random_;
};

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_BACKOFF_H_
