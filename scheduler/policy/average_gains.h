#ifndef SPECFABRIC_SCHEDULER_POLICY_AVERAGE_GAINS_H_
#define SPECFABRIC_SCHEDULER_POLICY_AVERAGE_GAINS_H_

// What trees gain on average: of late, and usually, over far more trees and so over many texts.
// Texts differ: what trees gained in the last one says little of one that begins.

#include <algorithm>
#include <cstdint>

#include "scheduler/policy/tree_budget.h"

namespace specfabric::scheduler {

class AverageGains {
 public:
  // trees: how many the average of late counts, about.
  explicit AverageGains(int32_t trees) : trees_(trees) {}

  void Add(const GainHistogram& tree) {
    seen_ = std::min(seen_ + 1, trees_);
    usual_seen_ = std::min(usual_seen_ + 1, kUsualTrees);
    of_late_.MoveTo(tree, 1.0 / seen_);
    usual_.MoveTo(tree, 1.0 / usual_seen_);
  }
  bool known() const { return seen_ > 0; }
  const GainHistogram& of_late() const { return of_late_; }
  // What the usual text would have gained, where another average of the same texts has moved as
  // far from its usual one as `other`.
  GainHistogram UsualBeside(const AverageGains& other) const {
    const double usual = other.usual_.Sum();
    GainHistogram gains;
    gains.Add(usual_, usual > 0 ? std::min(kMostMoved, other.of_late_.Sum() / usual) : 1);
    return gains;
  }
  // This share of the texts is new.
  void OnNewTexts(double share) {
    if (known()) of_late_.MoveTo(usual_, share);
  }
  // Those of late count as so many at most.
  void Doubt(int32_t trees) { seen_ = std::min(seen_, trees); }

 private:
  static constexpr int32_t kUsualTrees = 1024;
  static constexpr double kMostMoved = 4;
  int32_t trees_;
  int32_t seen_ = 0, usual_seen_ = 0;
  GainHistogram of_late_, usual_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_AVERAGE_GAINS_H_
