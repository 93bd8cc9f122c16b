#ifndef SPECFABRIC_MODEL_CPU_FETCH_TRIAL_H_
#define SPECFABRIC_MODEL_CPU_FETCH_TRIAL_H_

// Whether a pass of so many rows, of a single block, had better fetch a layer's weights itself,
// some steps ahead, or leave that to the processor, which sees that they are read in order. On some
// machines its own fetching fills the memory's queues better than any we ask for; on others it does
// not. So both are tried in turns in the first passes, and the one whose quickest pass was quicker
// stays: what else the machine does makes passes slower, never quicker. Ours has to be clearly
// quicker, for it is work too. Results have the same bits. Owned by the layer; one thread.

#include <algorithm>
#include <array>
#include <limits>

#include "base/clock.h"

namespace specfabric::model::cpu {

class FetchTrial {
 public:
  bool settled() const { return passes_ == 2 * kPassesOfEach; }
  // What the coming pass does.
  bool fetches() const { return settled() ? FetchingPays() : passes_ % 2 == 0; }
  // It took so long. Not when settled.
  void Observe(base::Nanos took) {
    base::Nanos& quickest = quickest_[fetches() ? 1 : 0];
    quickest = std::min(quickest, took);
    ++passes_;
  }

 private:
  static constexpr int kPassesOfEach = 8;

  bool FetchingPays() const { return quickest_[1] + quickest_[1] / 50 < quickest_[0]; }

  int passes_ = 0;
  // Without fetching and with.
  std::array<base::Nanos, 2> quickest_ = {std::numeric_limits<base::Nanos>::max(),
                                          std::numeric_limits<base::Nanos>::max()};
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_FETCH_TRIAL_H_
