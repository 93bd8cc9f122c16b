#include "scheduler/acceptance_estimate.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace specfabric::scheduler {
namespace {

using speculation::Coupling;
using speculation::SiblingDraw;
using speculation::TokenTree;

// About as many trials as count: older ones fade.
constexpr double kMemory = 500;
// Trials that the prior is worth: a draft that says how sure it is is believed until it is known
// better, and a first guess is expected to do better than its siblings.
constexpr double kPrior = 4;
constexpr double kFade = 0.02;  // is forgotten at pace 1
constexpr double kFadeLookup = 0.999;

// By the draft, given the parent.
float ChanceSaid(float score) { return std::exp(std::min(score, 0.0f)); }

double PlacePrior(int rank) { return rank == 0 ? 0.6 : 0.15; }

bool JudgedByScore(Coupling coupling, SiblingDraw draw) {
  return !speculation::NeedsDraftRows(coupling, draw);
}

}  // namespace

int AcceptanceEstimate::Bin(float said) {
  return std::min(kBins - 1, static_cast<int>(said * kBins));
}

// Depth of each node, and its rank among the children of its parent.
struct AcceptanceEstimate::Places {
  explicit Places(const TokenTree& tree) : depth(speculation::DepthArray(tree)) {
    std::array<uint8_t, speculation::kMaxDraftNodes> children;
    std::fill_n(children.begin(), tree.size(), 0);
    rank[0] = 0;
    for (int node = 1; node < tree.size(); ++node) rank[node] = children[tree.parents[node]]++;
  }
  int place(int node) const { return std::min(depth[node] - 1, kDepths - 1); }
  int order(int node) const { return std::min<int>(rank[node], kRanks - 1); }
  std::array<uint8_t, speculation::kMaxDraftNodes> depth, rank;
};

double AcceptanceEstimate::Tally::Chance(double prior) const {
  return (accepted + kPrior * prior) / (tried + kPrior);
}

void AcceptanceEstimate::PathChances(Coupling coupling, const speculation::Draft& draft,
                                     std::vector<float>* chances) const {
  const TokenTree& tree = draft.tree;
  chances->resize(tree.size() - 1);
  const PerDrafters& drafters = couplings_[static_cast<size_t>(coupling)];
  const auto path = [&](int node) { return node == 0 ? 1.0f : (*chances)[node - 1]; };
  if (JudgedByScore(coupling, draft.draw)) {
    for (int node = 1; node < tree.size(); ++node) {
      const float said = ChanceSaid(tree.scores[node]);
      const speculation::Source source = draft.source(node);
      const ByScore& scores =
          drafters[source.drafter].by_score[static_cast<size_t>(source.guesser)];
      const Tally& tally = scores[Bin(said)];
      (*chances)[node - 1] = path(tree.parents[node]) * static_cast<float>(tally.Chance(said));
    }
    return;
  }
  const Places places(tree);
  const ByPlace& by_place = drafters[draft.drafter].by_place;
  for (int node = 1; node < tree.size(); ++node) {
    const Tally& tally = by_place[places.place(node)][places.order(node)];
    (*chances)[node - 1] =
        path(tree.parents[node]) * static_cast<float>(tally.Chance(PlacePrior(places.rank[node])));
  }
}

void AcceptanceEstimate::Observe(Coupling coupling, const speculation::Draft& draft,
                                 absl::Span<const int32_t> path) {
  const TokenTree& tree = draft.tree;
  PerDrafters& drafters = couplings_[static_cast<size_t>(coupling)];
  const bool by_score = JudgedByScore(coupling, draft.draw);
  std::optional<Places> places;
  if (!by_score) places.emplace(tree);
  std::array<bool, speculation::kMaxDraftNodes> accepted;
  std::fill_n(accepted.begin(), tree.size(), false);
  accepted[0] = true;
  for (int32_t node : path) accepted[node] = true;
  for (int node = 1; node < tree.size(); ++node) {
    // Below a node that was not accepted nothing is learned.
    if (!accepted[tree.parents[node]]) continue;
    const speculation::Source source = draft.source(node);
    PerDrafter& of = drafters[source.drafter];
    Tally& tally =
        by_score
            ? of.by_score[static_cast<size_t>(source.guesser)][Bin(ChanceSaid(tree.scores[node]))]
            : of.by_place[places->place(node)][places->order(node)];
    if (tally.tried >= kMemory) {
      tally.tried *= 1 - 1 / kMemory;
      tally.accepted *= 1 - 1 / kMemory;
    }
    tally.tried += 1;
    tally.accepted += accepted[node] ? 1 : 0;
  }
}

void AcceptanceEstimate::Fade(Coupling coupling, double pace) {
  const double kept = 1 - pace * kFade;
  const auto fade = [kept](Tally& tally) {
    tally.tried *= kept;
    tally.accepted *= kept;
  };
  for (PerDrafter& drafter : couplings_[static_cast<size_t>(coupling)]) {
    for (const auto guesser : {speculation::Guesser::kDrafter, speculation::Guesser::kSeveral}) {
      for (Tally& tally : drafter.by_score[static_cast<size_t>(guesser)]) fade(tally);
    }
    for (auto& ranks : drafter.by_place) {
      for (Tally& tally : ranks) fade(tally);
    }
  }
}

void AcceptanceEstimate::FadeLookup(Coupling coupling) {
  PerDrafter& drafter = couplings_[static_cast<size_t>(coupling)][0];
  for (Tally& tally : drafter.by_score[static_cast<size_t>(speculation::Guesser::kLookup)]) {
    tally.tried *= kFadeLookup;
    tally.accepted *= kFadeLookup;
  }
}

}  // namespace specfabric::scheduler
