#include "sampling/draft_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/bfloat16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::sampling {
namespace {

using base::SamplingParams;
using base::TokenId;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint16_t> MadeDraftProbs(const std::vector<float>& logits,
                                     const SamplingParams& sampling, int top_n = 0) {
  std::vector<uint16_t> draft_probs(logits.size(), 0xFFFF);
  MakeDraftProbs(logits, sampling, top_n, absl::MakeSpan(draft_probs));
  return draft_probs;
}

std::vector<float> Widened(const std::vector<uint16_t>& draft_probs) {
  std::vector<float> widened;
  for (uint16_t prob : draft_probs) widened.push_back(base::WidenBFloat16(prob));
  return widened;
}

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (float value : values) rounded.push_back(base::RoundToBFloat16(value));
  return rounded;
}

DrawSite Site(uint32_t draw) { return {.purpose = Purpose::kDraft, .position = 7, .draw = draw}; }

TEST(MakeDraftProbsTest, AreTheSoftmaxRoundedBeforeAnythingIsDrawn) {
  SamplingParams sampling;
  sampling.temperature = 0.5f;
  const std::vector<float> logits = {1.0f, 0.25f, -3.0f, 0.9f};
  const std::vector<uint16_t> draft_probs = MadeDraftProbs(logits, sampling);
  for (size_t i = 0; i < logits.size(); ++i) {
    const float exact = std::exp((logits[i] - 1.0f) / 0.5f);
    EXPECT_EQ(draft_probs[i], base::RoundToBFloat16(exact)) << i;
  }
  const std::vector<double> q = Probabilities(draft_probs);
  double sum = 0;
  for (double probability : q) sum += probability;
  EXPECT_NEAR(sum, 1.0, 1e-15);
  EXPECT_DOUBLE_EQ(q[1] / q[0], base::WidenBFloat16(draft_probs[1]));
}

TEST(MakeDraftProbsTest, LongRowsAreWhatTheExponentialRoundsTo) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 4);
  for (float temperature : {0.3f, 1.0f, 1.7f}) {
    std::vector<float> logits(4099);
    for (float& logit : logits) logit = normal(random);
    const float best = *std::max_element(logits.begin(), logits.end());
    const std::vector<uint16_t> draft_probs = MadeDraftProbs(logits, {.temperature = temperature});
    for (size_t i = 0; i < logits.size(); ++i) {
      const double exact = std::exp((static_cast<double>(logits[i]) - best) / temperature);
      if (exact < 0x1p-120) continue;  // may be 0
      // Half of bfloat16's last place, and what float32 leaves off before.
      ASSERT_NEAR(base::WidenBFloat16(draft_probs[i]) / exact, 1, 0x1.01p-8) << logits[i];
    }
  }
}

TEST(MakeDraftProbsTest, GreedyHasOneToken) {
  SamplingParams sampling;
  sampling.temperature = 0;
  EXPECT_THAT(Widened(MadeDraftProbs({1, 3, 3, 2}, sampling)), ElementsAre(0, 1, 0, 0));
}

TEST(MakeDraftProbsTest, FilteredTokensHaveNone) {
  SamplingParams sampling;
  sampling.top_k = 2;
  const std::vector<float> draft_probs = Widened(MadeDraftProbs({0, 5, 4, 3}, sampling));
  EXPECT_EQ(draft_probs[0], 0);
  EXPECT_GT(draft_probs[1], draft_probs[2]);
  EXPECT_GT(draft_probs[2], 0);
  EXPECT_EQ(draft_probs[3], 0);
}

TEST(MakeDraftProbsTest, TopNKeepsTheHeaviestWithTiesToTheLowestId) {
  EXPECT_THAT(MadeDraftProbs({1, 2, 2, 2}, {}, 2),
              ElementsAre(0, ::testing::Gt(0), ::testing::Gt(0), 0));
  EXPECT_EQ(MadeDraftProbs({1, 2, 3}, {}, 5), MadeDraftProbs({1, 2, 3}, {}));
}

TEST(MakeDraftProbsTest, AllAreZeroWhereALogitIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_p = 0.9f}}) {
    for (float value : {nan, infinity, -infinity}) {
      for (int top_n : {0, 1}) {
        EXPECT_THAT(Widened(MadeDraftProbs({0, 5, value}, sampling, top_n)), ElementsAre(0, 0, 0));
      }
    }
  }
}

TEST(TotalProbTest, IsTheSumAndTheSameBitsFromNonZeroTokensAlone) {
  std::mt19937 random(3);
  for (int size : {1, 127, 128, 129, 5000}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = std::normal_distribution<float>(0, 3)(random);
    const std::vector<uint16_t> draft_probs = MadeDraftProbs(logits, {.top_k = size / 2 + 1});
    std::vector<TokenId> ids;
    std::vector<uint16_t> of_ids;
    double sum = 0;
    for (int token = 0; token < size; ++token) {
      sum += base::WidenBFloat16(draft_probs[token]);
      if (draft_probs[token] == 0 && token % 3 != 0) continue;
      ids.push_back(token);
      of_ids.push_back(draft_probs[token]);
    }
    EXPECT_NEAR(TotalProb(draft_probs), sum, 1e-12 * sum);
    EXPECT_EQ(TotalProb(of_ids, ids), TotalProb(draft_probs));
    EXPECT_EQ(TotalProb(draft_probs, {}), TotalProb(draft_probs));
  }
}

TEST(DrawTest, NothingIsDrawnFromZeros) {
  EXPECT_THAT(DrawWithReplacement(Rounded({0, 0}), 3, 1, Site(0)), IsEmpty());
  EXPECT_THAT(DrawWithoutReplacement(Rounded({0, 0}), 3, 1, Site(0)), IsEmpty());
}

TEST(DrawTest, WithoutReplacementEndsWhenNothingIsLeft) {
  const std::vector<TokenId> drawn = DrawWithoutReplacement(Rounded({1, 0, 2, 0}), 4, 3, Site(0));
  EXPECT_THAT(drawn, ::testing::UnorderedElementsAre(0, 2));
}

// Pearson's statistic of the counts of `draws` outcomes against their probabilities.
double ChiSquare(const std::map<std::vector<TokenId>, double>& distribution,
                 const std::map<std::vector<TokenId>, int>& counts, int draws) {
  double statistic = 0;
  for (const auto& [outcome, probability] : distribution) {
    const auto found = counts.find(outcome);
    const double seen = found == counts.end() ? 0 : found->second;
    const double expected = probability * draws;
    statistic += (seen - expected) * (seen - expected) / expected;
  }
  return statistic;
}

// Pairs of siblings: 0.999 quantiles of chi-square with 15 and 11 degrees of freedom.
TEST(DrawTest, FollowsTheDraftProbabilities) {
  const std::vector<uint16_t> draft_probs = Rounded({0.5f, 3.0f, 0.03125f, 1.0f});
  const std::vector<double> q = Probabilities(draft_probs);
  std::map<std::vector<TokenId>, double> with, without;
  for (TokenId a = 0; a < 4; ++a) {
    for (TokenId b = 0; b < 4; ++b) {
      with[{a, b}] = q[a] * q[b];
      if (a != b) without[{a, b}] = q[a] * q[b] / (1 - q[a]);
    }
  }
  constexpr int kDraws = 200'000;
  std::map<std::vector<TokenId>, int> seen_with, seen_without;
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    ++seen_with[DrawWithReplacement(draft_probs, 2, 99, Site(draw))];
    ++seen_without[DrawWithoutReplacement(draft_probs, 2, 98, Site(draw))];
  }
  for (const auto& [outcome, count] : seen_without) EXPECT_TRUE(without.count(outcome));
  EXPECT_LT(ChiSquare(with, seen_with, kDraws), 37.7);
  EXPECT_LT(ChiSquare(without, seen_without, kDraws), 31.3);
}

}  // namespace
}  // namespace specfabric::sampling
