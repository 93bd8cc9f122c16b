#ifndef SPECFABRIC_SCHEDULER_POLICY_ACCEPTANCE_ESTIMATE_H_
#define SPECFABRIC_SCHEDULER_POLICY_ACCEPTANCE_ESTIMATE_H_

// The chance that a node of a draft tree is accepted if its parent is, learned online from the
// rounds so far. Where any subtree may be verified it follows from the drafter's score of the node,
// calibrated; the n-gram lookup's is believed less until it was tried. Where the verification
// method uses draft probabilities it follows from the node's place alone (depth and index among its
// siblings): a choice by what was drawn would change the output distribution (verification.md
// section 3, Trimming). Each drafter is calibrated by itself, and so are the n-gram lookup and the
// tokens that several sources propose. Of the n-gram lookup the methods that accept alike learn
// together (OfNgramLookup). Owned by GoodputControl; one thread; allocates nothing.

#include <array>
#include <vector>

#include "absl/types/span.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

class AcceptanceEstimate {
 public:
  // [nodes - 1]: for nodes 1.. the chance that the whole path to the node is accepted.
  void PathChances(speculation::VerificationMethod verification, const speculation::Draft& draft,
                   std::vector<float>* chances) const;
  // The accepted path of a tree that was verified, as speculation::Accepted::path.
  void Observe(speculation::VerificationMethod verification, const speculation::Draft& draft,
               absl::Span<const int32_t> path);
  // Makes what was learned of drafters count less, so that their own scores are believed again
  // where nothing has been tried for long. pace: in (0, 1], 1 the fastest.
  void Decay(speculation::VerificationMethod verification, double pace);
  // The same for the n-gram lookup, more slowly: of all methods, once a step, however many
  // sequences it proposes for.
  void DecayNgramLookup();

 private:
  static constexpr int kBins = 20;  // of exp(score), evenly spaced
  static constexpr int kDepths = 16, kSiblings = 4;
  struct Tally {
    double tried = 0, accepted = 0;
    double Chance(double prior) const;
  };
  using ByScore = std::array<Tally, kBins>;
  using ByPlace = std::array<std::array<Tally, kSiblings>, kDepths>;
  struct Places;
  struct PerDrafter {
    std::array<ByScore, speculation::kProposalSources> by_score;
    ByPlace by_place;
  };
  using PerDrafters = std::array<PerDrafter, speculation::kMaxDrafters>;

  static int Bin(float draft_probability);
  // Whose tallies a method uses and adds to for the nodes of a source.
  static size_t MethodOf(speculation::VerificationMethod verification,
                         speculation::ProposalSource proposed_by);

  std::array<PerDrafters, speculation::kVerificationMethods> by_method_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_ACCEPTANCE_ESTIMATE_H_
