#ifndef SPECFABRIC_SCHEDULER_POLICY_AVERAGE_GAINS_H_
#define SPECFABRIC_SCHEDULER_POLICY_AVERAGE_GAINS_H_

// What trees gain on average: of late, and usually, over far more trees and so over many texts.
// Texts differ: what trees gained in the last one says little of one that begins.

#include <algorithm>
#include <cmath>
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
    // The first came before the drafters' scores were calibrated, and count less.
    usual_.MoveTo(tree, 2.0 / (1 + usual_seen_));
  }
  bool known() const { return seen_ > 0; }
  const GainHistogram& of_late() const { return of_late_; }
  // What a tree of these gains of late, as seen by `other`, of the same texts: as much as those,
  // times what the two usually differ by. Of few trees little is believed of that: they were of
  // other texts, or came before the drafters' scores were calibrated.
  GainHistogram LikeThose(const AverageGains& other) const {
    const double own = usual_.Sum(), usual = other.usual_.Sum();
    if (own <= 0 || usual <= 0) return other.of_late_;
    const double trees = std::min(usual_seen_, other.usual_seen_);
    const double differ = std::pow(own / usual, trees / (trees + kUnsureTrees));
    GainHistogram gains;
    gains.Add(usual_, std::min(kMostMoved, other.of_late_.Sum() * differ / own));
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
  static constexpr double kUnsureTrees = 48;
  int32_t trees_;
  int32_t seen_ = 0, usual_seen_ = 0;
  GainHistogram of_late_, usual_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_AVERAGE_GAINS_H_
