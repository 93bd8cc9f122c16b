#include "speculation/confidence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace specfabric::speculation {
namespace {

constexpr double kDecay = 0.998;  // about 500 choices count
constexpr double kDullest = 0.1, kSharpest = 10;
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Finite, as both scores are: one infinity would be kept for ever, and no draft may send any.
float Gap(const sampling::ScoredToken& c, const sampling::ScoredToken& best) {
  return std::max(c.score - best.score, kLowest);
}

}  // namespace

std::vector<float> Confidence::LogProbs(absl::Span<const sampling::ScoredToken> candidates) const {
  std::vector<float> logprobs;
  logprobs.reserve(candidates.size());
  float sum = 0;
  for (const sampling::ScoredToken& c : candidates) {
    logprobs.push_back(std::max(sharpness() * Gap(c, candidates[0]), kLowest));
    sum += std::exp(logprobs.back());
  }
  for (float& logprob : logprobs) logprob -= std::log(sum);
  return logprobs;
}

// One step of Newton's method for the likelihood of all choices so far, each counted the less the
// older it is: its gradient in the sharpness is the chosen gap less the expected one, its curvature
// the gaps' variance.
void Confidence::Observe(absl::Span<const sampling::ScoredToken> candidates, base::TokenId chosen) {
  if (candidates.size() < 2) return;
  double sum = 0, mean = 0, square = 0;
  // A choice beyond the candidates is no likelier than the last of them.
  double chosen_gap = Gap(candidates.back(), candidates[0]);
  for (const sampling::ScoredToken& c : candidates) {
    const double gap = Gap(c, candidates[0]);
    const double weight = std::exp(sharpness_ * gap);
    sum += weight;
    mean += weight * gap;
    square += weight * gap * gap;
    if (c.token == chosen) chosen_gap = gap;
  }
  mean /= sum;
  information_ = kDecay * information_ + square / sum - mean * mean;
  sharpness_ = std::clamp(sharpness_ + (chosen_gap - mean) / std::max(information_, 1e-3), kDullest,
                          kSharpest);
}

}  // namespace specfabric::speculation
