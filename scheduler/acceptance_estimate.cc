#include "scheduler/acceptance_estimate.h"

#include <algorithm>
#include <cmath>

namespace specfabric::scheduler {
namespace {

using speculation::Coupling;
using speculation::TokenTree;

// About as many trials as count: older ones fade.
constexpr double kMemory = 2000;
// Trials that the prior is worth: a draft that says how sure it is is believed until it is known
// better, and a first guess is expected to do better than its siblings.
constexpr double kPrior = 10;

double PlacePrior(int rank) { return rank == 0 ? 0.6 : 0.15; }

// Depth of each node, and its rank among the children of its parent.
struct Places {
  explicit Places(const TokenTree& tree) : depth(speculation::Depths(tree)), rank(tree.size(), 0) {
    std::vector<int> children(tree.size(), 0);
    for (int node = 1; node < tree.size(); ++node) rank[node] = children[tree.parents[node]]++;
  }
  std::vector<int32_t> depth;
  std::vector<int> rank;
};

}  // namespace

int AcceptanceEstimate::Bin(float score) {
  const double chance = std::exp(std::min(score, 0.0f));
  return std::min(kBins - 1, static_cast<int>(chance * kBins));
}

std::vector<float> AcceptanceEstimate::Chances(Coupling coupling,
                                               const speculation::Draft& draft) const {
  const TokenTree& tree = draft.tree;
  std::vector<float> chances(tree.size(), 1.0f);
  const bool by_score = ByScoreAllowed(coupling, draft.draw);
  const Places places(tree);
  const auto c = static_cast<size_t>(coupling);
  for (int node = 1; node < tree.size(); ++node) {
    double prior;
    const Tally* tally;
    if (by_score) {
      prior = std::exp(std::min(tree.scores[node], 0.0f));
      tally = &by_score_[c][Bin(tree.scores[node])];
    } else {
      prior = PlacePrior(places.rank[node]);
      tally = &by_place_[c][std::min(places.depth[node] - 1, kDepths - 1)]
                        [std::min(places.rank[node], kRanks - 1)];
    }
    chances[node] =
        static_cast<float>((tally->accepted + kPrior * prior) / (tally->tried + kPrior));
  }
  return chances;
}

void AcceptanceEstimate::Observe(Coupling coupling, const TokenTree& tree,
                                 speculation::SiblingDraw draw, const std::vector<int32_t>& path) {
  std::vector<bool> accepted(tree.size(), false);
  accepted[0] = true;
  for (int32_t node : path) accepted[node] = true;
  const Places places(tree);
  const bool by_score = ByScoreAllowed(coupling, draw);
  const auto c = static_cast<size_t>(coupling);
  for (int node = 1; node < tree.size(); ++node) {
    // Below a node that was not accepted nothing is learned.
    if (!accepted[tree.parents[node]]) continue;
    Tally& tally = by_score ? by_score_[c][Bin(tree.scores[node])]
                            : by_place_[c][std::min(places.depth[node] - 1, kDepths - 1)]
                                       [std::min(places.rank[node], kRanks - 1)];
    if (tally.tried >= kMemory) {
      tally.tried *= 1 - 1 / kMemory;
      tally.accepted *= 1 - 1 / kMemory;
    }
    tally.tried += 1;
    tally.accepted += accepted[node] ? 1 : 0;
  }
}

}  // namespace specfabric::scheduler
