#include "scheduler/simulation/modelled_states.h"

#include <algorithm>

namespace specfabric::scheduler {

base::Nanos ModelledStates::Send(const StateCost& cost, int64_t tokens, base::Nanos now) {
  const int64_t bytes = tokens * cost.BytesPerToken();
  tokens_ += tokens;
  bytes_ += bytes;
  free_ = std::max(free_, now);
  if (cost.bytes_per_second > 0) {
    free_ += static_cast<base::Nanos>(1e9 * static_cast<double>(bytes) / cost.bytes_per_second);
  }
  return free_ + cost.latency;
}

}  // namespace specfabric::scheduler
