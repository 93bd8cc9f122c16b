#include "scheduler/policy/acceptance_estimate.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace specfabric::scheduler {
namespace {

using speculation::SiblingDraw;
using speculation::TokenTree;
using speculation::VerificationMethod;

// Older trials decay, so that about so many count.
constexpr double kMaxTrials = 500;
// Trials that the prior counts as. The prior of a scored node is the drafter's own probability; of
// a place, that a first child is accepted more often than its siblings.
constexpr double kPrior = 4;
constexpr double kDecay = 0.02;  // share that one Decay at pace 1 forgets
constexpr double kNgramLookupDecay = 0.999;
// Most that is expected of the n-gram lookup untried. Its score counts what matched, and says 1 of
// every long repetition: many sequences at once would try all of theirs.
constexpr float kNgramLookupPrior = 0.9;

// Of the node given its parent, by the drafter.
float DraftProbability(float score) { return std::exp(std::min(score, 0.0f)); }

float ScorePrior(float draft_probability, speculation::ProposalSource proposed_by) {
  const bool lookup = proposed_by == speculation::ProposalSource::kNgramLookup;
  return lookup ? std::min(draft_probability, kNgramLookupPrior) : draft_probability;
}

double PlacePrior(int sibling) { return sibling == 0 ? 0.6 : 0.15; }

bool EstimatedByScore(VerificationMethod verification, SiblingDraw draw) {
  return !speculation::NeedsDraftRows(verification, draw);
}

}  // namespace

int AcceptanceEstimate::Bin(float draft_probability) {
  return std::min(kBins - 1, static_cast<int>(draft_probability * kBins));
}

size_t AcceptanceEstimate::MethodOf(VerificationMethod verification,
                                    speculation::ProposalSource proposed_by) {
  const bool lookup = proposed_by == speculation::ProposalSource::kNgramLookup;
  return static_cast<size_t>(lookup ? speculation::OfNgramLookup(verification) : verification);
}

// Depth of each node, and its index among the children of its parent.
struct AcceptanceEstimate::Places {
  explicit Places(const TokenTree& tree) : depth(speculation::DepthArray(tree)) {
    std::array<uint8_t, speculation::kMaxDraftNodes> children;
    std::fill_n(children.begin(), tree.size(), 0);
    sibling[0] = 0;
    for (int node = 1; node < tree.size(); ++node) sibling[node] = children[tree.parents[node]]++;
  }
  int place(int node) const { return std::min(depth[node] - 1, kDepths - 1); }
  int order(int node) const { return std::min<int>(sibling[node], kSiblings - 1); }
  std::array<uint8_t, speculation::kMaxDraftNodes> depth, sibling;
};

double AcceptanceEstimate::Tally::Chance(double prior) const {
  return (accepted + kPrior * prior) / (tried + kPrior);
}

void AcceptanceEstimate::PathChances(VerificationMethod verification,
                                     const speculation::Draft& draft,
                                     std::vector<float>* chances) const {
  const TokenTree& tree = draft.tree;
  chances->resize(tree.size() - 1);
  const auto path = [&](int node) { return node == 0 ? 1.0f : (*chances)[node - 1]; };
  if (EstimatedByScore(verification, draft.draw)) {
    for (int node = 1; node < tree.size(); ++node) {
      const float draft_probability = DraftProbability(tree.scores[node]);
      const speculation::Source source = draft.source(node);
      const ByScore& scores = by_method_[MethodOf(verification, source.proposed_by)][source.drafter]
                                  .by_score[static_cast<size_t>(source.proposed_by)];
      const Tally& tally = scores[Bin(draft_probability)];
      (*chances)[node - 1] =
          path(tree.parents[node]) *
          static_cast<float>(tally.Chance(ScorePrior(draft_probability, source.proposed_by)));
    }
    return;
  }
  const Places places(tree);
  const ByPlace& by_place = by_method_[static_cast<size_t>(verification)][draft.drafter].by_place;
  for (int node = 1; node < tree.size(); ++node) {
    const Tally& tally = by_place[places.place(node)][places.order(node)];
    (*chances)[node - 1] = path(tree.parents[node]) *
                           static_cast<float>(tally.Chance(PlacePrior(places.sibling[node])));
  }
}

void AcceptanceEstimate::Observe(VerificationMethod verification, const speculation::Draft& draft,
                                 absl::Span<const int32_t> path) {
  const TokenTree& tree = draft.tree;
  const bool by_score = EstimatedByScore(verification, draft.draw);
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
    const size_t method =
        by_score ? MethodOf(verification, source.proposed_by) : static_cast<size_t>(verification);
    PerDrafter& of = by_method_[method][source.drafter];
    Tally& tally = by_score ? of.by_score[static_cast<size_t>(source.proposed_by)]
                                         [Bin(DraftProbability(tree.scores[node]))]
                            : of.by_place[places->place(node)][places->order(node)];
    if (tally.tried >= kMaxTrials) {
      tally.tried *= 1 - 1 / kMaxTrials;
      tally.accepted *= 1 - 1 / kMaxTrials;
    }
    tally.tried += 1;
    tally.accepted += accepted[node] ? 1 : 0;
  }
}

void AcceptanceEstimate::Decay(VerificationMethod verification, double pace) {
  const double kept = 1 - pace * kDecay;
  const auto decay = [kept](Tally& tally) {
    tally.tried *= kept;
    tally.accepted *= kept;
  };
  for (PerDrafter& drafter : by_method_[static_cast<size_t>(verification)]) {
    for (const auto proposed_by :
         {speculation::ProposalSource::kDrafter, speculation::ProposalSource::kSeveral}) {
      for (Tally& tally : drafter.by_score[static_cast<size_t>(proposed_by)]) decay(tally);
    }
    for (auto& by_sibling : drafter.by_place) {
      for (Tally& tally : by_sibling) decay(tally);
    }
  }
}

void AcceptanceEstimate::DecayNgramLookup() {
  constexpr auto kSource = static_cast<size_t>(speculation::ProposalSource::kNgramLookup);
  for (PerDrafters& of_method : by_method_) {
    for (Tally& tally : of_method[0].by_score[kSource]) {
      tally.tried *= kNgramLookupDecay;
      tally.accepted *= kNgramLookupDecay;
    }
  }
}

}  // namespace specfabric::scheduler
