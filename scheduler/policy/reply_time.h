#ifndef SPECFABRIC_SCHEDULER_POLICY_REPLY_TIME_H_
#define SPECFABRIC_SCHEDULER_POLICY_REPLY_TIME_H_

// How long a drafter's reply will take, learned from earlier ones: a fixed time plus a time for
// each level of the tree, apart for each number of sequences that ask at about the same time (in
// powers of two), since busy workers take longer. Owned by GoodputControl, one for each
// verification method; one thread.

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "scheduler/policy/loads.h"

namespace specfabric::scheduler {

class ReplyTime {
 public:
  // askers: sequences that asked in that round; depth: levels of the tree in the reply.
  void Observe(int32_t askers, int32_t depth, base::Nanos latency);
  // A reply that had not come after `waited`.
  void ObserveAtLeast(int32_t askers, int32_t depth, base::Nanos waited);
  // Whether enough replies of this load have come to bound the time of the next.
  bool known(int32_t askers) const;
  bool any() const { return observed_; }
  // 0 before any reply.
  base::Nanos Expect(int32_t askers, double depth) const;
  // Mean absolute deviation from the expected time.
  base::Nanos Deviation(int32_t askers) const;

 private:
  struct Line {
    double fixed = 0, level = 0;  // microseconds
  };
  // Sums of a least-squares fit of latency = fixed + level * depth, in microseconds; old replies
  // decay.
  struct Fit {
    double n = 0, d = 0, dd = 0, t = 0, dt = 0;
    double deviation = 0;
    // fixed_share: of the time of one level, where the replies do not say.
    Line Fitted(double fixed_share) const;
    bool KnowsLevels() const;
  };
  // This load, or the nearest one that has replies.
  int Nearest(int32_t askers) const;
  double FixedShare(int load) const;
  double ExpectUs(int32_t askers, double depth) const;

  std::array<Fit, kLoads> fits_ = {};
  bool observed_ = false;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_REPLY_TIME_H_
