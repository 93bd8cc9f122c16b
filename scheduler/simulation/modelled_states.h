#ifndef SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_STATES_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_STATES_H_

// The stream of a target's hidden states to its draft workers: after each step those of the tokens
// it has committed, prompts included, one step's after the other's over one link. Pure.

#include <cstdint>

#include "base/clock.h"

namespace specfabric::scheduler {

struct StateCost {
  int32_t layers = 0,
          hidden = 0;           // what a drafter reads of a token: layers x hidden size, bfloat16
  base::Nanos latency = 0;      // of a step's states, besides the time that their bytes take
  double bytes_per_second = 0;  // of the link; 0: no limit

  int64_t BytesPerToken() const { return int64_t{2} * layers * hidden; }
};

class ModelledStates {
 public:
  // Sends a step's states, of so many tokens. Returns when they have arrived.
  base::Nanos Send(const StateCost& cost, int64_t tokens, base::Nanos now);

  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }

 private:
  base::Nanos free_ = 0;  // when the link has sent what was given to it
  int64_t tokens_ = 0, bytes_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_STATES_H_
