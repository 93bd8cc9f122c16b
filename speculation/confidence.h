#ifndef SPECFABRIC_SPECULATION_CONFIDENCE_H_
#define SPECFABRIC_SPECULATION_CONFIDENCE_H_

// How likely the target is to choose each of a draft's candidates. The draft's own softmax does not
// say that: where the target takes the best of its scores (greedily, or under noise that both
// share), a draft whose scores differ little from the target's is right far more often than its
// probability of the token says. What counts is the gap between its scores against how much the
// two models' scores differ, so the softmax is taken of `sharpness` times the scores, and the
// sharpness is learned from the tokens that the target chose, as the one under which they are
// likeliest. One thread; pure.

#include <vector>

#include "absl/types/span.h"
#include "base/types.h"
#include "sampling/sampling.h"

namespace specfabric::speculation {

class Confidence {
 public:
  // Log-probability of each candidate; best score first. The normaliser runs over the candidates
  // alone: those below them hardly matter.
  std::vector<float> LogProbs(absl::Span<const sampling::ScoredToken> candidates) const;
  // The target chose this token where these were the candidates.
  void Observe(absl::Span<const sampling::ScoredToken> candidates, base::TokenId chosen);
  float sharpness() const { return static_cast<float>(sharpness_); }

 private:
  double sharpness_ = 1;
  double information_ = 2;  // Fisher information of the observations; at first, of the prior
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_CONFIDENCE_H_
