#include "sampling/sampling.h"
#include "sampling/gumbel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/philox.h"

namespace specfabric::sampling {
namespace {

using base::SamplingParams;
using base::TokenId;
using testing::ElementsAre;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomRow(std::mt19937* random, int size, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(size);
  for (float& logit : row) logit = normal(*random);
  return row;
}

std::vector<float> Noise(uint64_t seed, uint32_t position, int size) {
  std::vector<float> noise(size);
  GumbelNoise(seed, position, 0, absl::MakeSpan(noise));
  return noise;
}

TEST(PerturbedArgMaxTest, EqualsTheBestOfAPlainLoopAndOfItsShards) {
  std::mt19937 random(1);
  for (int size : {1, 2, 15, 16, 17, 100, 1023, 1024, 1025, 5000}) {
    for (float temperature : {0.0f, 0.3f, 1.0f}) {
      std::vector<float> row = RandomRow(&random, size, 2.0f);
      for (float& logit : row) logit = std::round(logit);  // many ties at temperature 0
      const std::vector<float> noise = Noise(random(), 3, size);
      ScoredToken best;
      for (int i = 0; i < size; ++i) {
        const ScoredToken token{i, std::fma(temperature, noise[i], row[i])};
        if (Better(token, best)) best = token;
      }
      const ScoredToken whole = PerturbedArgMax(row, noise, temperature, 0);
      EXPECT_EQ(whole.token, best.token);
      EXPECT_EQ(whole.score, best.score);

      const int cut = static_cast<int>(random() % (size + 1));
      const absl::Span<const float> logits(row), gumbel(noise);
      ScoredToken left = PerturbedArgMax(logits.first(cut), gumbel.first(cut), temperature, 0);
      const ScoredToken right =
          PerturbedArgMax(logits.subspan(cut), gumbel.subspan(cut), temperature, cut);
      if (Better(right, left)) left = right;
      EXPECT_EQ(left.token, whole.token);
    }
  }
}

TEST(PerturbedArgMaxTest, OfNothingChoosesNothing) {
  EXPECT_EQ(PerturbedArgMax({}, {}, 0.0f, 0).token, base::kNoToken);
}

// In the first, the last and an inner place of whole vectors, of chunks, and of what is left over.
class NotFiniteTest : public testing::TestWithParam<float> {
 protected:
  template <typename Check>
  void AtEveryPlace(Check check) {
    std::mt19937 random(1);
    for (int size : {1, 2, 7, 63, 64, 65, 1023, 1024, 1025, 2500}) {
      std::vector<float> row = RandomRow(&random, size, 5);
      for (int at : {0, 1, 15, 16, size / 2, 1023, 1024, size - 2, size - 1}) {
        if (at < 0 || at >= size) continue;
        const float good = std::exchange(row[at], GetParam());
        SCOPED_TRACE(testing::Message() << "logit " << at << " of " << size);
        ASSERT_NO_FATAL_FAILURE(check(row, at));
        row[at] = good;
      }
    }
  }
};

TEST_P(NotFiniteTest, OneLogitMarksTheRow) {
  AtEveryPlace([](const std::vector<float>& row, int at) {
    const auto size = static_cast<int>(row.size());
    const std::vector<float> noise = Noise(1, 2, size);
    for (float temperature : {0.0f, 1e-20f, 0.7f, 2.0f}) {
      const ScoredToken best = PerturbedArgMax(row, noise, temperature, 10);
      EXPECT_EQ(best.score, kNotFinite);
      EXPECT_EQ(best.token, 10 + at);
    }
    // Of shards, it is that of the one that has it.
    const auto left = absl::MakeConstSpan(row).first(at), right = absl::MakeConstSpan(row);
    ScoredToken a = PerturbedArgMax(left, {}, 0.0f, 0);
    const ScoredToken b = PerturbedArgMax(right.subspan(at), {}, 0.0f, at);
    EXPECT_TRUE(Better(b, a));
    EXPECT_FALSE(Better(a, b));
  });
}

TEST_P(NotFiniteTest, NothingIsSampledOrKeptOfTheRow) {
  AtEveryPlace([](const std::vector<float>& row, int) {
    const auto size = static_cast<int>(row.size());
    const std::vector<float> noise = Noise(1, 2, size);
    for (const SamplingParams& sampling :
         {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.top_k = 1},
          SamplingParams{.top_k = 40}, SamplingParams{.top_k = 2000}, SamplingParams{.top_p = 0.9f},
          SamplingParams{.min_p = 0.1f}, SamplingParams{.top_k = 5, .top_p = 0.5f}}) {
      EXPECT_EQ(SampleRow(row, noise, sampling), base::kNoToken);
      EXPECT_THAT(FilterMask(row, sampling), ::testing::Each(0));
    }
    EXPECT_EQ(RowLogprobs(row, 0, 3).token, base::kNoToken);
    bool finite = true;
    PerturbedTopK(row, noise, 1.0f, 3, &finite);
    EXPECT_FALSE(finite);
  });
}

INSTANTIATE_TEST_SUITE_P(Values, NotFiniteTest,
                         testing::Values(kNan, -kNan, kInf, -kInf,
                                         std::numeric_limits<float>::signaling_NaN()));

TEST(LargestNumbersTest, AreFinite) {
  const std::vector<float> row = {-kMax, 0, kMax, -0.0f, std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(PerturbedArgMax(row, {}, 0.0f, 0).token, 2);
  EXPECT_EQ(SampleRow(row, Noise(1, 2, 5), {}), 2);
  bool finite = false;
  PerturbedTopK(row, {}, 0.0f, 5, &finite);
  EXPECT_TRUE(finite);
  // Their log-probabilities are, too, though less likely than any number says.
  for (int token = 0; token < 5; ++token) {
    const base::TokenLogprobs logprobs = RowLogprobs(row, token, 5);
    EXPECT_TRUE(std::isfinite(logprobs.logprob));
    for (const auto& [id, logprob] : logprobs.top) EXPECT_TRUE(std::isfinite(logprob)) << id;
  }
}

TEST(PerturbedTopKTest, EqualsASortOfTheWholeRow) {
  std::mt19937 random(2);
  for (int size : {1, 5, 100, 1500, 4000}) {
    for (float temperature : {0.0f, 1.0f}) {
      std::vector<float> row = RandomRow(&random, size, 2.0f);
      for (float& logit : row) logit = std::round(logit);
      const std::vector<float> noise = Noise(random(), 3, size);
      std::vector<ScoredToken> sorted;
      for (int i = 0; i < size; ++i) {
        sorted.push_back({i, std::fma(temperature, noise[i], row[i])});
      }
      std::sort(sorted.begin(), sorted.end(), Better);
      for (int k : {0, 1, 2, 8, 300, size}) {
        const std::vector<ScoredToken> best = PerturbedTopK(row, noise, temperature, k);
        ASSERT_EQ(static_cast<int>(best.size()), std::min(k, size));
        for (size_t i = 0; i < best.size(); ++i) {
          ASSERT_EQ(best[i].token, sorted[i].token);
          ASSERT_EQ(best[i].score, sorted[i].score);
        }
      }
    }
  }
}

std::vector<int> Kept(const std::vector<float>& logits, const SamplingParams& sampling) {
  const std::vector<uint8_t> mask = FilterMask(logits, sampling);
  std::vector<int> kept;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) kept.push_back(static_cast<int>(i));
  }
  return kept;
}

std::vector<float> LogOf(const std::vector<double>& p) {
  std::vector<float> logits;
  for (double x : p) logits.push_back(static_cast<float>(std::log(x)));
  return logits;
}

TEST(FilterMaskTest, TopK) {
  const std::vector<float> row = {1, 3, 2, 3, 0};
  EXPECT_THAT(Kept(row, {.top_k = 1}), ElementsAre(1));
  EXPECT_THAT(Kept(row, {.top_k = 2}), ElementsAre(1, 3));
  EXPECT_THAT(Kept(row, {.top_k = 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Kept(row, {.top_k = 5}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Kept(row, {.top_k = 0}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Kept(row, {.top_k = 9}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(FilterMaskTest, TopKTiesGoToTheLowestIds) {
  EXPECT_THAT(Kept({7, 7, 7, 7}, {.top_k = 2}), ElementsAre(0, 1));
  EXPECT_THAT(Kept({7, 9, 7, 7}, {.top_k = 2}), ElementsAre(0, 1));
}

TEST(FilterMaskTest, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> row = LogOf({0.1, 0.5, 0.15, 0.25});
  EXPECT_THAT(Kept(row, {.top_p = 0.4f}), ElementsAre(1));
  EXPECT_THAT(Kept(row, {.top_p = 0.6f}), ElementsAre(1, 3));
  EXPECT_THAT(Kept(row, {.top_p = 0.8f}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Kept(row, {.top_p = 0.95f}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Kept(row, {.top_p = 1e-9f}), ElementsAre(1));
  // Exactly reached is reached: four equal tokens, half the mass.
  EXPECT_THAT(Kept({2, 2, 2, 2}, {.top_p = 0.5f}), ElementsAre(0, 1));
}

TEST(FilterMaskTest, TopPSeesTheDistributionAfterTemperatureAndTopK) {
  const std::vector<float> row = LogOf({0.4, 0.3, 0.2, 0.1});
  EXPECT_THAT(Kept(row, {.top_p = 0.6f}), ElementsAre(0, 1));
  // Squared: .53, .30, .13, .03.
  EXPECT_THAT(Kept(row, {.temperature = 0.5f, .top_p = 0.5f}), ElementsAre(0));
  // Of the best two: 4/7, 3/7.
  EXPECT_THAT(Kept(row, {.top_k = 2, .top_p = 0.5f}), ElementsAre(0));
}

TEST(FilterMaskTest, MinPIsRelativeToTheMostLikely) {
  const std::vector<float> row = LogOf({0.4, 0.3, 0.2, 0.1});
  EXPECT_THAT(Kept(row, {.min_p = 0.45f}), ElementsAre(0, 1, 2));
  EXPECT_THAT(Kept(row, {.min_p = 0.999f}), ElementsAre(0));
  // At temperature 1/2 the ratios are squared: 1, .5625, .25, .0625.
  EXPECT_THAT(Kept(row, {.temperature = 0.5f, .min_p = 0.45f}), ElementsAre(0, 1));
}

TEST(FilterMaskTest, GreedyKeepsTheArgMaxWhateverTheFilters) {
  EXPECT_THAT(Kept({1, 3, 3}, {.temperature = 0.0f, .top_k = 3}), ElementsAre(1));
}

TEST(FilterMaskTest, OddRowsKeepAtLeastOneToken) {
  const SamplingParams all_filters{.top_k = 2, .top_p = 0.5f, .min_p = 0.1f};
  EXPECT_THAT(Kept({-kMax, -kMax, -kMax}, all_filters), ElementsAre(0));
  EXPECT_THAT(Kept({0.0f, kMax, -kMax}, all_filters), ElementsAre(1));
  EXPECT_THAT(Kept({}, all_filters), ElementsAre());
}

// The filters as a person would write them: one full sort.
std::vector<int> SortedFilter(const std::vector<float>& logits, const SamplingParams& s) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (s.top_k > 0) order.resize(std::min<size_t>(order.size(), s.top_k));
  std::vector<long double> p;
  long double total = 0;
  for (int id : order) {
    p.push_back(std::exp((static_cast<long double>(logits[id]) - logits[order[0]]) /
                         static_cast<long double>(s.temperature)));
    total += p.back();
  }
  size_t size = order.size();
  if (s.top_p < 1) {
    long double sum = p[0];
    for (size = 1; size < order.size() && sum < s.top_p * total; ++size) sum += p[size];
  }
  while (size > 1 && p[size - 1] < s.min_p) --size;
  order.resize(size);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(FilterMaskTest, EqualsASortOnRandomRowsOfEverySize) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (int trial = 0; trial < 400; ++trial) {
    const int size = 1 + random() % (trial % 10 == 0 ? 20'000 : 600);
    std::vector<float> row = RandomRow(&random, size, 4 * uniform(random));
    if (trial % 3 == 0) {
      for (float& logit : row) logit = std::round(4 * logit) / 4;
    }
    const SamplingParams sampling{
        .temperature = 0.2f + uniform(random),
        .top_k = trial % 2 == 0 ? 0 : static_cast<int>(1 + random() % (2 * size)),
        .top_p = trial % 5 == 0 ? 1.0f : uniform(random),
        .min_p = trial % 7 < 5 ? 0.0f : 0.2f * uniform(random)};
    ASSERT_EQ(Kept(row, sampling), SortedFilter(row, sampling)) << "trial " << trial;
  }
}

// The double-precision score of the reference.
double ExactScore(const std::vector<float>& row, const SamplingParams& sampling, uint32_t position,
                  TokenId token) {
  const DrawSite site{.purpose = Purpose::kGumbel, .position = position};
  const double u = (PhiloxWord(sampling.seed, site, token) + 0.5) * 0x1p-32;
  return row[token] - double{sampling.temperature} * std::log(-std::log1p(-u));
}

TEST(SampleRowTest, EqualsTheReferenceExceptWhereFloat32CannotTell) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  int near_ties = 0;
  for (int trial = 0; trial < 4'000; ++trial) {
    const int size = 2 + random() % 500;
    const std::vector<float> row = RandomRow(&random, size, 3.0f);
    const SamplingParams sampling{.temperature = trial % 8 == 0 ? 0.0f : 1.5f * uniform(random),
                                  .top_k = trial % 2 == 0 ? 0 : static_cast<int>(random() % 50),
                                  .top_p = trial % 3 == 0 ? 1.0f : 0.05f + 0.9f * uniform(random),
                                  .min_p = trial % 5 == 0 ? 0.1f * uniform(random) : 0.0f,
                                  .seed = random()};
    const uint32_t position = random() % 4096;
    const TokenId fast = SampleRow(row, Noise(sampling.seed, position, size), sampling);
    const TokenId reference = SampleRowReference(row, sampling, position);
    if (fast == reference) continue;
    ++near_ties;
    ASSERT_FALSE(sampling.greedy());
    ASSERT_NEAR(ExactScore(row, sampling, position, fast),
                ExactScore(row, sampling, position, reference), 1e-5)
        << "trial " << trial;
  }
  EXPECT_LT(near_ties, 4);
}

TEST(SampleRowTest, LowTemperatureApproachesGreedy) {
  std::mt19937 random(6);
  const std::vector<float> row = RandomRow(&random, 300, 3.0f);
  const TokenId greedy = PerturbedArgMax(row, {}, 0.0f, 0).token;
  for (uint32_t position = 0; position < 50; ++position) {
    EXPECT_EQ(SampleRow(row, Noise(1, position, 300), {.temperature = 1e-6f}), greedy);
  }
}

TEST(RowLogprobsTest, AreTheLogOfTheSoftmax) {
  const std::vector<float> row = LogOf({0.1, 0.5, 0.15, 0.25});
  const base::TokenLogprobs logprobs = RowLogprobs(row, 2, 2);
  EXPECT_EQ(logprobs.token, 2);
  EXPECT_NEAR(logprobs.logprob, std::log(0.15), 1e-6);
  ASSERT_EQ(logprobs.top.size(), 2u);
  EXPECT_EQ(logprobs.top[0].first, 1);
  EXPECT_NEAR(logprobs.top[0].second, std::log(0.5), 1e-6);
  EXPECT_EQ(logprobs.top[1].first, 3);
  EXPECT_NEAR(logprobs.top[1].second, std::log(0.25), 1e-6);
  EXPECT_TRUE(RowLogprobs(row, 0, 0).top.empty());
}

TEST(RowLogprobsTest, MassesSumToOneAndLargeLogitsDoNotOverflow) {
  std::mt19937 random(7);
  std::vector<float> row = RandomRow(&random, 1000, 3.0f);
  for (float& logit : row) logit += 1e4f;
  const base::TokenLogprobs all = RowLogprobs(row, 0, 1000);
  double sum = 0;
  for (const auto& [token, logprob] : all.top) sum += std::exp(double{logprob});
  EXPECT_NEAR(sum, 1.0, 1e-5);
}

}  // namespace
}  // namespace specfabric::sampling
