#include "sampling/gumbel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sampling/philox.h"

namespace specfabric::sampling {
namespace {

double ExactExponential(uint32_t word) { return -std::log1p(-(word + 0.5) * 0x1p-32); }

// libm's double log1p has 53 bits, but 1 - u has lost them near u = 1; there the distance from 1 is
// exact.
double Exponential(uint32_t word) {
  return word < 0x80000000u ? ExactExponential(word) : -std::log((~word + 0.5) * 0x1p-32);
}

std::vector<uint32_t> Words() {
  std::vector<uint32_t> words = {0, 1, 2, 3, 0x80000000u, 0x7fffffffu, 0xffffffffu, 0xfffffffeu};
  for (int bit = 0; bit < 32; ++bit) {
    for (uint32_t around : {-2u, -1u, 0u, 1u, 2u}) {
      words.push_back((1u << bit) + around);
      words.push_back(~(1u << bit) + around);
    }
  }
  // Where 1 - u crosses sqrt(1/2), and where E crosses 1 (g is 0).
  for (double u : {1 - std::sqrt(0.5), std::sqrt(0.5), 1 - std::exp(-1.0)}) {
    const uint32_t word = static_cast<uint32_t>(u * 0x1p32);
    for (uint32_t around = 0; around < 512; ++around) words.push_back(word - 256 + around);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const uint32_t word = random();
    words.push_back(word);
    words.push_back(word >> (i % 32));
    words.push_back(~(word >> (i % 32)));
  }
  return words;
}

TEST(GumbelTest, ExponentialHasSmallRelativeErrorOverTheWholeRange) {
  double worst = 0;
  for (uint32_t word : Words()) {
    const double exact = Exponential(word);
    const double error = std::abs(ExponentialFromWord(word) / exact - 1);
    worst = std::max(worst, error);
    ASSERT_LT(error, 0x1p-22) << word;
  }
  RecordProperty("worst_relative_error_of_E", std::to_string(worst));
  EXPECT_LT(worst, 1.3 * 0x1p-23);
}

TEST(GumbelTest, NoiseHasSmallErrorOverTheWholeRange) {
  for (uint32_t word : Words()) {
    const double exact = -std::log(Exponential(word));
    const float g = GumbelFromWord(word);
    ASSERT_TRUE(std::isfinite(g)) << word;
    // g's own rounding, and E's relative error, which is an absolute one of g.
    ASSERT_LT(std::abs(g - exact), 1.5 * 0x1p-23 + 0x1p-23 * std::abs(exact)) << word;
  }
}

TEST(GumbelTest, CornersOfTheRange) {
  EXPECT_NEAR(GumbelFromWord(0), 33 * std::log(2.0), 4e-6);
  EXPECT_NEAR(GumbelFromWord(0xffffffffu), -std::log(33 * std::log(2.0)), 1e-6);
  EXPECT_NEAR(ExponentialFromWord(0x80000000u), std::log(2.0), 1e-7);
  EXPECT_EQ(ExponentialFromWord(0), 0x1p-33f);
}

// One word per line of the definition, without the bulk path.
std::vector<float> OneByOne(uint64_t seed, uint32_t position, int32_t first, int n) {
  std::vector<float> noise(n);
  const DrawSite site{.purpose = Purpose::kGumbel, .position = position};
  for (int i = 0; i < n; ++i) noise[i] = GumbelFromWord(PhiloxWord(seed, site, first + i));
  return noise;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i;
  }
}

class GumbelIsaTest : public testing::TestWithParam<base::Isa> {};

TEST_P(GumbelIsaTest, EveryVariantHasTheBitsOfTheScalar) {
  if (!base::Supported(GetParam())) GTEST_SKIP() << "this processor cannot run it";
  for (uint64_t seed : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
    for (uint32_t position : {0u, 1u, 131071u}) {
      std::vector<float> noise(50'003);
      GumbelNoise(GetParam(), seed, position, 0, absl::MakeSpan(noise));
      ExpectSameBits(noise, OneByOne(seed, position, 0, 50'003));
    }
  }
}

TEST_P(GumbelIsaTest, AnIdsNoiseDoesNotDependOnWhereTheShardBegins) {
  if (!base::Supported(GetParam())) GTEST_SKIP() << "this processor cannot run it";
  const std::vector<float> whole = OneByOne(7, 3, 0, 1200);
  for (int first : {0, 1, 2, 3, 4, 5, 63, 64, 65, 500, 1001}) {
    for (int n : {0, 1, 2, 3, 4, 63, 64, 65, 128, 199}) {
      std::vector<float> shard(n);
      GumbelNoise(GetParam(), 7, 3, first, absl::MakeSpan(shard));
      ExpectSameBits(shard, {whole.begin() + first, whole.begin() + first + n});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GumbelIsaTest,
                         testing::Values(base::Isa::kPortable, base::Isa::kAvx2,
                                         base::Isa::kAvx512));

TEST(GumbelTest, BitsAreTheOnesOfRecord) {
  // A text made with a seed today must come out the same from a later build or another machine.
  std::vector<float> noise(4);
  GumbelNoise(42, 7, 0, absl::MakeSpan(noise));
  ExpectSameBits(noise, {-0x1.8f8b06p-2f, 0x1.4e2504p-1f, -0x1.4ea766p-2f, -0x1.16bb42p-13f});
}

TEST(GumbelTest, MomentsAreThoseOfTheGumbelDistribution) {
  std::vector<float> noise(1 << 20);
  GumbelNoise(5, 0, 0, absl::MakeSpan(noise));
  double sum = 0, squares = 0;
  for (float g : noise) sum += g, squares += double{g} * g;
  const double n = static_cast<double>(noise.size());
  const double mean = sum / n;
  // Mean: Euler's constant; variance: pi^2 / 6. Six standard errors.
  EXPECT_NEAR(mean, 0.5772156649, 6 * 1.2825 / std::sqrt(n));
  EXPECT_NEAR(squares / n - mean * mean, 1.6449340668, 6 * 3.45 / std::sqrt(n));
}

}  // namespace
}  // namespace specfabric::sampling
