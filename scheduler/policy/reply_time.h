#ifndef SPECFABRIC_SCHEDULER_POLICY_REPLY_TIME_H_
#define SPECFABRIC_SCHEDULER_POLICY_REPLY_TIME_H_

// How long a draft's reply will take, learned from those that came: a fixed part and a part for
// each level of the tree, for each number of sequences that ask at about the same time (powers of
// two), since workers that many ask take longer. One thread.

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace specfabric::scheduler {

class ReplyTime {
 public:
  // askers: sequences that asked in that round; depth: levels of the tree that came.
  void Observe(int32_t askers, int32_t depth, base::Nanos latency);
  // A reply that had not come after this time: it takes longer than that.
  void ObserveAtLeast(int32_t askers, int32_t depth, base::Nanos waited);
  // Enough replies of this load have come to say how long one may take at most.
  bool known(int32_t askers) const;
  // 0 before any reply.
  base::Nanos Expect(int32_t askers, double depth) const;
  // Mean deviation from what was expected.
  base::Nanos Deviation(int32_t askers) const;

 private:
  // latency = fixed + levels * depth, least squares, old replies forgotten; microseconds.
  struct Fit {
    double n = 0, d = 0, dd = 0, t = 0, dt = 0;
    double deviation = 0;
    double Expect(double depth) const;
  };
  static int Load(int32_t askers);
  // The fit for this load, or of the nearest that is known.
  const Fit& Nearest(int32_t askers) const;

  static constexpr int kLoads = 12;
  std::array<Fit, kLoads> fits_ = {};
  bool observed_ = false;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_REPLY_TIME_H_
