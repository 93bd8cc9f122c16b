#ifndef SPECFABRIC_SCHEDULER_ACCEPTANCE_ESTIMATE_H_
#define SPECFABRIC_SCHEDULER_ACCEPTANCE_ESTIMATE_H_

// The chance that a node of a draft's tree is accepted, given that its parent is: learned online
// from the rounds so far. Where any tree may be trimmed it follows from the draft's own score of
// the node, which is calibrated; where siblings' probabilities are weighed it may follow from the
// node's place alone (depth and rank among its siblings), since a choice by what was drawn would
// bend the law (verification.md section 3, Trimming). One thread.

#include <array>
#include <vector>

#include "speculation/coupling.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

class AcceptanceEstimate {
 public:
  // Of every node given its parent, [nodes]; the root's is 1.
  std::vector<float> Chances(speculation::Coupling coupling, const speculation::Draft& draft) const;
  // What became of a tree that was verified. path: as Accepted's.
  void Observe(speculation::Coupling coupling, const speculation::TokenTree& tree,
               speculation::SiblingDraw draw, const std::vector<int32_t>& path);

 private:
  static constexpr int kBins = 20;  // of exp(score), evenly spaced
  static constexpr int kDepths = 16, kRanks = 4;
  struct Tally {
    double tried = 0, accepted = 0;
  };
  using ByScore = std::array<Tally, kBins>;
  using ByPlace = std::array<std::array<Tally, kRanks>, kDepths>;

  static int Bin(float score);
  static bool ByScoreAllowed(speculation::Coupling coupling, speculation::SiblingDraw draw) {
    return !speculation::NeedsDraftRows(coupling, draw);
  }

  std::array<ByScore, speculation::kCouplings> by_score_;
  std::array<ByPlace, speculation::kCouplings> by_place_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_ACCEPTANCE_ESTIMATE_H_
