#ifndef SPECFABRIC_GATEWAY_FINISH_RATE_H_
#define SPECFABRIC_GATEWAY_FINISH_RATE_H_

// The recent rate at which choices finish, for the Retry-After of requests that found no room.
// Pure.

#include <cstddef>

#include "base/clock.h"

namespace specfabric::gateway {

class FinishRate {
 public:
  // Work begins after an idle time: forgets the rate before it.
  void Begin(base::Nanos now);
  // One has finished. Times may not go back.
  void Finish(base::Nanos now);
  // Seconds, from 1 to 60, in which `pending` finish at the rate of the last ten seconds or so.
  int SecondsUntilDone(size_t pending, base::Nanos now) const;

 private:
  base::Nanos began_ = 0;
  base::Nanos last_ = 0;
  double finished_ = 0;  // finishes until last_, each decayed by its age
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_FINISH_RATE_H_
