#include "speculation/confidence.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

std::vector<sampling::ScoredToken> RandomCandidates(std::mt19937& random) {
  std::exponential_distribution<float> gap(1.0f);
  std::vector<sampling::ScoredToken> candidates = {{0, 1.0f}};
  for (int token = 1; token < 8; ++token) {
    candidates.push_back({token, candidates.back().score - gap(random)});
  }
  return candidates;
}

// The target's scores are the draft's and noise; what it chooses is its best.
base::TokenId NoisyChoice(const std::vector<sampling::ScoredToken>& candidates, float noise,
                          std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, noise);
  sampling::ScoredToken best;
  for (sampling::ScoredToken candidate : candidates) {
    candidate.score += normal(random);
    if (sampling::Better(candidate, best)) best = candidate;
  }
  return best.token;
}

TEST(ConfidenceTest, AtFirstItIsTheSoftmaxOfTheScores) {
  const std::vector<float> logprobs = Confidence().LogProbs({{5, 2.0f}, {3, 1.0f}});
  EXPECT_NEAR(std::exp(logprobs[0]), 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(std::exp(logprobs[0]) + std::exp(logprobs[1]), 1, 1e-6);
}

TEST(ConfidenceTest, TheLargestScoresLeaveNothingThatIsNotFinite) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<sampling::ScoredToken> far = {{0, kMax}, {1, 0.0f}, {2, -kMax}};
  for (base::TokenId chosen : {0, 1, 2, 9}) {
    Confidence confidence;
    for (int i = 0; i < 20; ++i) {
      for (float logprob : confidence.LogProbs(far)) ASSERT_TRUE(std::isfinite(logprob));
      confidence.Observe(far, chosen);
      ASSERT_TRUE(std::isfinite(confidence.sharpness()));
      ASSERT_GT(confidence.sharpness(), 0);
    }
  }
}

// What it says comes true as often as it says, however close the draft is to the target.
TEST(ConfidenceTest, LearnsHowSureToBe) {
  for (const float noise : {0.2f, 0.5f, 1.5f, 4.0f}) {
    std::mt19937 random(7);
    Confidence confidence;
    for (int i = 0; i < 2000; ++i) {
      const auto candidates = RandomCandidates(random);
      confidence.Observe(candidates, NoisyChoice(candidates, noise, random));
    }
    double said = 0, right = 0, likelihood = 0, naive = 0;
    constexpr int kTrials = 4000;
    for (int i = 0; i < kTrials; ++i) {
      const auto candidates = RandomCandidates(random);
      const base::TokenId chosen = NoisyChoice(candidates, noise, random);
      const std::vector<float> logprobs = confidence.LogProbs(candidates);
      said += std::exp(logprobs[0]);
      right += chosen == candidates[0].token;
      likelihood += logprobs[chosen];
      naive += Confidence().LogProbs(candidates)[chosen];
    }
    EXPECT_NEAR(said / kTrials, right / kTrials, 0.03) << noise;
    EXPECT_GT(likelihood, 1.005 * naive) << noise;  // both are negative
  }
}

TEST(ConfidenceTest, FollowsADraftThatGetsWorse) {
  std::mt19937 random(8);
  Confidence confidence;
  const auto observe = [&](float noise) {
    for (int i = 0; i < 2000; ++i) {
      const auto candidates = RandomCandidates(random);
      confidence.Observe(candidates, NoisyChoice(candidates, noise, random));
    }
    return confidence.sharpness();
  };
  const float close = observe(0.3f);
  EXPECT_LT(observe(3.0f), close / 2);
}

TEST(ConfidenceTest, ChoicesBeyondTheCandidatesMakeItLessSure) {
  std::mt19937 random(9);
  Confidence confidence;
  for (int i = 0; i < 200; ++i) confidence.Observe(RandomCandidates(random), 99);
  EXPECT_LT(confidence.sharpness(), 0.3f);
  EXPECT_GT(confidence.sharpness(), 0.0f);
  confidence.Observe({}, 1);
  const std::vector<sampling::ScoredToken> one = {{1, 0.0f}};
  confidence.Observe(one, 1);
  EXPECT_EQ(confidence.LogProbs(one)[0], 0.0f);
}

}  // namespace
}  // namespace specfabric::speculation
