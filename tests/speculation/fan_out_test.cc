#include "speculation/fan_out.h"

#include <cmath>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

std::vector<double> ToDouble(const std::vector<int32_t>& counts) {
  return {counts.begin(), counts.end()};
}

// verification.md, section 8.
TEST(FanOutTest, TheWorkedExample) {
  const auto near = [](double value) { return DoubleNear(value, 0.005); };
  EXPECT_THAT(GeometricFanOut(0.8, 1, 4, 20),
              ElementsAre(near(4.13), near(3.70), near(3.31), near(2.96), near(5.91)));
  const std::vector<int32_t> whole = WholeFanOut(0.8, 1, 4, 20);
  EXPECT_THAT(whole, ElementsAre(4, 4, 3, 3, 6));
  EXPECT_NEAR(FanOutHitRate(0.8, 1, ToDouble(whole)), 0.765, 0.0005);
  EXPECT_NEAR(FanOutHitRate(0.8, 1, ToDouble(UniformFanOut(4, 20))), 0.750, 0.0005);
}

TEST(FanOutTest, NoWholeNumbersAreBetter) {
  for (const double acceptance : {0.2, 0.6, 0.9}) {
    for (const double falloff : {0.5, 1.0, 2.0}) {
      const std::vector<int32_t> best = WholeFanOut(acceptance, falloff, 3, 12);
      EXPECT_EQ(std::accumulate(best.begin(), best.end(), 0), 12);
      const double rate = FanOutHitRate(acceptance, falloff, ToDouble(best));
      for (int a = 1; a < 10; ++a) {
        for (int b = 1; a + b < 11; ++b) {
          for (int c = 1; a + b + c < 12; ++c) {
            const std::vector<double> other = {double(a), double(b), double(c),
                                               double(12 - a - b - c)};
            EXPECT_LE(FanOutHitRate(acceptance, falloff, other), rate + 1e-12);
          }
        }
      }
    }
  }
}

TEST(FanOutTest, FewCandidatesGoToTheLikeliestOutcomes) {
  EXPECT_THAT(WholeFanOut(0.9, 1, 3, 1), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(WholeFanOut(0.3, 1, 3, 2), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(UniformFanOut(3, 6), ElementsAre(2, 2, 1, 1));
}

// Outcomes drawn as the formula supposes: what is measured is what it says, and more than uniform.
TEST(FanOutTest, MeasuredHitRateIsTheFormulas) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform;
  for (const double acceptance : {0.5, 0.8, 0.9}) {
    constexpr int kLevels = 4, kTrials = 200'000;
    const std::vector<int32_t> geometric = WholeFanOut(acceptance, 1, kLevels, 20);
    const std::vector<int32_t> even = UniformFanOut(kLevels, 20);
    int hits = 0, even_hits = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      int k = 0;
      while (k < kLevels && uniform(random) < acceptance) ++k;
      // The position of the token that follows: above F with chance 1 / F.
      const double position = 1 / (1 - uniform(random));
      hits += position < geometric[k];
      even_hits += position < even[k];
    }
    const double rate = static_cast<double>(hits) / kTrials;
    EXPECT_NEAR(rate, FanOutHitRate(acceptance, 1, ToDouble(geometric)), 0.02);
    EXPECT_GT(hits, even_hits);
  }
}

}  // namespace
}  // namespace specfabric::speculation
