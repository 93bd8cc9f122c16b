#include "target/row_law.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "base/bfloat16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "speculation/distribution.h"
#include "speculation/proposal.h"
#include "speculation/sampling.h"

namespace specfabric::target {
namespace {

using base::Isa;
using base::SamplingParams;
using base::TokenId;
using speculation::Distribution;
using ::testing::ElementsAre;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomRow(std::mt19937* random, int size, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(size);
  for (float& logit : row) logit = normal(*random);
  return row;
}

Distribution ExactLaw(const std::vector<float>& logits, const SamplingParams& sampling) {
  const std::vector<uint8_t> kept = speculation::FilterMask(logits, sampling);
  const double max = *std::max_element(logits.begin(), logits.end());
  Distribution law(logits.size());
  for (size_t x = 0; x < law.size(); ++x) {
    law[x] = kept[x] ? std::exp((logits[x] - max) / static_cast<double>(sampling.temperature)) : 0;
  }
  return speculation::Normalized(law);
}

Distribution LawOf(const RowLaw& law, int vocabulary) {
  Distribution p;
  for (int x = 0; x < vocabulary; ++x) p.push_back(law.Probability(x));
  return p;
}

double TotalVariation(const Distribution& a, const Distribution& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += std::abs(a[x] - b[x]) / 2;
  return sum;
}

std::vector<uint16_t> RandomWeights(std::mt19937* random, int size) {
  std::vector<uint16_t> weights(size);
  speculation::MakeWeights(RandomRow(random, size, 2), {}, 0, absl::MakeSpan(weights));
  return weights;
}

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (float value : values) rounded.push_back(base::RoundToBFloat16(value));
  return rounded;
}

Distribution Law(const RowScratch& scratch, RowLaw* law, const std::vector<float>& logits,
                 const SamplingParams& sampling = {}) {
  law->Open(logits, sampling, false);
  return LawOf(*law, scratch.vocabulary);
}

TEST(RowLawTest, IsTheSoftmaxOfWhatTheFiltersKeep) {
  std::mt19937 random(1);
  for (int vocabulary : {1, 2, 3, 17, 1023, 1024, 1025, 4099, 20'000}) {
    RowScratch scratch(vocabulary, base::BestIsa());
    RowLaw law(&scratch);
    for (const SamplingParams& sampling :
         {SamplingParams{}, SamplingParams{.temperature = 0.4f},
          SamplingParams{.temperature = 2.5f}, SamplingParams{.top_k = 5},
          SamplingParams{.temperature = 0.8f, .top_p = 0.7f},
          SamplingParams{.temperature = 1.5f, .top_k = 40, .min_p = 0.05f}}) {
      // Ascending, so that later chunks have larger references.
      std::vector<float> logits = RandomRow(&random, vocabulary, 3);
      for (int x = 0; x < vocabulary; ++x) logits[x] += 1e-3f * static_cast<float>(x);
      const Distribution exact = ExactLaw(logits, sampling);
      const double most = *std::max_element(exact.begin(), exact.end());
      for (bool keep : {false, true}) {
        law.Open(logits, sampling, keep);
        for (int x = 0; x < vocabulary; ++x) {
          // float32 rounds the difference to the largest logit: the rarer, the coarser.
          const double tolerance =
              exact[x] == 0 ? 0 : exact[x] * (3e-7 + 1.2e-7 * std::log(most / exact[x]));
          ASSERT_NEAR(law.Probability(x), exact[x], tolerance) << x;
        }
        ASSERT_LT(TotalVariation(LawOf(law, vocabulary), exact), 2e-7);
      }
    }
  }
}

// The first chunk's largest logit is the second's reference, unless that would overflow.
TEST(RowLawTest, LaterLogitsMayBeMuchLarger) {
  constexpr int kVocabulary = 2500;
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowLaw law(&scratch);
  std::mt19937 random(8);
  for (float step : {5.0f, 40.0f, 43.0f, 90.0f, 1e4f, 3e38f, -90.0f}) {
    for (float first : {0.0f, -1e6f}) {
      std::vector<float> logits = RandomRow(&random, kVocabulary, 2);
      for (int x = 0; x < kVocabulary; ++x) {
        if (x >= 1024) logits[x] += step;
        if (x < 1024) logits[x] += first;
      }
      for (bool keep : {false, true}) {
        law.Open(logits, {}, keep);
        ASSERT_LT(TotalVariation(LawOf(law, kVocabulary), ExactLaw(logits, {})), 1e-6) << step;
      }
    }
  }
}

TEST(RowLawTest, TotalsAreTheExactOnesWithinAMillionth) {
  std::mt19937 random(2);
  for (float spread : {0.0f, 0.5f, 3.0f, 10.0f}) {
    for (int trial = 0; trial < 10; ++trial) {
      constexpr int kVocabulary = 128'256;
      RowScratch scratch(kVocabulary, base::BestIsa());
      RowLaw law(&scratch);
      const std::vector<float> logits = RandomRow(&random, kVocabulary, spread);
      law.Open(logits, {}, false);
      const auto best = std::max_element(logits.begin(), logits.end());
      double total = 0;
      for (float logit : logits) total += std::exp(static_cast<double>(logit) - *best);
      // The most likely token's weight is exactly 1.
      EXPECT_NEAR(1 / law.Probability(static_cast<TokenId>(best - logits.begin())), total,
                  1e-6 * total);
    }
  }
}

TEST(RowLawTest, TheLargestNumbersHaveALaw) {
  RowScratch scratch(4, base::BestIsa());
  RowLaw law(&scratch);
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.top_k = 3}}) {
    EXPECT_THAT(Law(scratch, &law, {1, kMax, -kMax, 0}, sampling), ElementsAre(0, 1, 0, 0));
    EXPECT_THAT(Law(scratch, &law, {kMax, 3, kMax, -kMax}, sampling), ElementsAre(0.5, 0, 0.5, 0));
    EXPECT_THAT(Law(scratch, &law, {-kMax, 0, -kMax, -kMax}, sampling), ElementsAre(0, 1, 0, 0));
  }
}

TEST(RowLawTest, ThereIsNoneWhereOneLogitIsNotFinite) {
  std::mt19937 random(12);
  for (int vocabulary : {1, 17, 1023, 1024, 1025, 3000}) {
    for (Isa isa : {Isa::kPortable, base::BestIsa()}) {
      RowScratch scratch(vocabulary, isa);
      RowLaw law(&scratch);
      std::vector<float> logits = RandomRow(&random, vocabulary, 3);
      for (const SamplingParams& sampling :
           {SamplingParams{.temperature = 0.7f}, SamplingParams{.top_k = 5},
            SamplingParams{.top_p = 0.9f}}) {
        for (bool keep : {false, true}) {
          EXPECT_TRUE(law.Open(logits, sampling, keep));
          for (float value : {kNan, kInf, -kInf}) {
            // The last chunk is padded where the vocabulary does not fill it.
            for (int at : {0, 15, vocabulary / 2, 1023, 1024, vocabulary - 1}) {
              if (at >= vocabulary) continue;
              const float good = std::exchange(logits[at], value);
              EXPECT_FALSE(law.Open(logits, sampling, keep)) << at << " of " << vocabulary;
              logits[at] = good;
            }
          }
          EXPECT_TRUE(law.Open(logits, sampling, keep));
        }
      }
    }
  }
}

TEST(RowLawTest, SamplesByTheRunningSum) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int vocabulary : {1, 3, 1024, 5000}) {
    RowScratch scratch(vocabulary, base::BestIsa());
    RowLaw law(&scratch);
    const std::vector<float> logits = RandomRow(&random, vocabulary, 2);
    const Distribution exact = ExactLaw(logits, {});
    for (bool keep : {false, true}) {
      law.Open(logits, {}, keep);
      for (int trial = 0; trial < 500; ++trial) {
        const double u = uniform(random);
        ASSERT_EQ(law.Sample(u),
                  speculation::TokenAt(absl::MakeConstSpan(exact), u, [](double p) { return p; }));
      }
      EXPECT_EQ(law.Sample(0x1p-53), 0);
      EXPECT_EQ(law.Sample(1 - 0x1p-53), vocabulary - 1);
    }
  }
}

TEST(RowLawTest, PerplexityIsThatOfTheLaw) {
  std::mt19937 random(4);
  for (int vocabulary : {1, 17, 4099}) {
    for (const SamplingParams& sampling :
         {SamplingParams{}, SamplingParams{.temperature = 0.5f}, SamplingParams{.top_k = 3}}) {
      RowScratch scratch(vocabulary, base::BestIsa());
      RowLaw law(&scratch);
      std::vector<float> logits = RandomRow(&random, vocabulary, 3);
      logits.back() += 4;
      if (vocabulary > 1) logits[0] = -kMax;
      double entropy = 0;
      for (double p : ExactLaw(logits, sampling)) entropy -= p > 0 ? p * std::log(p) : 0;
      law.Open(logits, sampling, false);
      EXPECT_NEAR(-std::log(law.InversePerplexity()), entropy, 1e-6 * (1 + entropy));
    }
  }
}

// --- Residuals ----------------------------------------------------------------------------------

// q in double precision.
Distribution Exact(const DraftLaw& q, int vocabulary) {
  Distribution law;
  for (int x = 0; x < vocabulary; ++x) law.push_back(q.Weight(x));
  return speculation::Normalized(law);
}

// Three residuals one after another, of whole rows or of a few tokens, some of them taken.
TEST(RowLawTest, ResidualsAreTheReferences) {
  std::mt19937 random(5);
  for (int vocabulary : {2, 17, 1025, 4099}) {
    RowScratch scratch(vocabulary, base::BestIsa());
    RowLaw law(&scratch);
    for (int trial = 0; trial < 40; ++trial) {
      const std::vector<float> logits = RandomRow(&random, vocabulary, 2);
      Distribution p = ExactLaw(logits, {});
      // What is left of nearly equal numbers has few digits: the less, the fewer.
      double tolerance = 2e-7;
      law.Open(logits, {}, trial % 2 == 0);
      for (double pi : {1.0, 0.7, 1.0}) {
        std::vector<uint16_t> weights = RandomWeights(&random, vocabulary);
        DraftLaw q{.weights = weights, .ids = {}, .taken = {}, .total = 0};
        std::vector<TokenId> ids;
        if (random() % 2 == 0) {
          for (int x = 0; x < vocabulary; ++x) {
            if (random() % 3 == 0 || x == 1) ids.push_back(x);
          }
          weights.resize(ids.size());
          q.weights = weights;
          q.ids = ids;
        }
        const TokenId taken = static_cast<TokenId>(random() % vocabulary);
        if (taken != 1) q.taken = {taken};
        for (int x = 0; x < vocabulary; ++x) q.total += q.Weight(x);
        const Distribution exact = Exact(q, vocabulary);
        for (int x = 0; x < vocabulary; ++x) {
          if (exact[x] == 0) continue;
          ASSERT_NEAR(law.Chance(pi, q, x) * exact[x], std::min(exact[x], pi * p[x]), tolerance);
        }
        const speculation::Residual residual = speculation::ResidualOf(pi, p, exact);
        ASSERT_NEAR(law.Subtract(pi, q), residual.mass, tolerance);
        p = residual.law;
        if (residual.mass > 0) tolerance = 2 * (tolerance + 2e-7) / residual.mass;
        ASSERT_LT(TotalVariation(LawOf(law, vocabulary), p), tolerance);
      }
    }
  }
}

TEST(RowLawTest, TheLawStaysWhereNothingIsLeft) {
  RowScratch scratch(3, base::BestIsa());
  RowLaw law(&scratch);
  const std::vector<float> logits = {0, 0, -kMax};
  const std::vector<uint16_t> whole = Rounded({1, 1, 0});
  const std::vector<TokenId> ids = {0, 1};
  for (const DraftLaw& q : {DraftLaw{whole, {}, {}, 2}, DraftLaw{{&whole[0], 2}, ids, {}, 2}}) {
    for (bool keep : {false, true}) {
      law.Open(logits, {}, keep);
      EXPECT_EQ(law.Subtract(1, q), 0);
      EXPECT_THAT(LawOf(law, 3), ElementsAre(0.5, 0.5, 0));
      EXPECT_EQ(law.Subtract(0.25, q), 0);
      EXPECT_EQ(law.Subtract(0, q), 0);
      EXPECT_THAT(LawOf(law, 3), ElementsAre(0.5, 0.5, 0));
      // Token 0 is taken: it keeps its mass, although nothing had been subtracted from it.
      DraftLaw rest = q;
      rest.taken = {0};
      rest.total = 1;
      EXPECT_EQ(law.Subtract(1, rest), 0.5);
      EXPECT_THAT(LawOf(law, 3), ElementsAre(1, 0, 0));
    }
  }
}

TEST(RowLawTest, ATokenThatCanBeRejectedIsGoneAfterwards) {
  std::mt19937 random(6);
  constexpr int kVocabulary = 64;
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowLaw law(&scratch);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = RandomRow(&random, kVocabulary, 0.01f);
    std::vector<uint16_t> weights(kVocabulary);
    speculation::MakeWeights(logits, {}, 0, absl::MakeSpan(weights));
    std::vector<TokenId> ids;
    for (int x = 0; x < kVocabulary; ++x) ids.push_back(x);
    DraftLaw q{weights, {}, {}, speculation::TotalWeight(weights)};
    if (trial % 2 == 0) q.ids = ids;
    law.Open(logits, {}, false);
    std::vector<double> chances;
    for (int x = 0; x < kVocabulary; ++x) chances.push_back(law.Chance(1, q, x));
    ASSERT_GT(law.Subtract(1, q), 0);
    for (int x = 0; x < kVocabulary; ++x) {
      ASSERT_EQ(chances[x] < 1, law.Probability(x) == 0) << trial << " " << x;
    }
  }
}

// Weights from the ends of bfloat16's range, as only a hostile draft sends them.
TEST(RowLawTest, ExtremeWeightsStaySound) {
  constexpr int kVocabulary = 2000;
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowLaw law(&scratch);
  const std::vector<float> logits(kVocabulary, 1.0f);
  for (uint16_t bits : {uint16_t{0x0001}, uint16_t{0x7F7F}}) {
    std::vector<uint16_t> weights(kVocabulary, 0);
    std::fill_n(weights.begin(), kVocabulary / 2, bits);
    const DraftLaw q{weights, {}, {}, speculation::TotalWeight(weights)};
    law.Open(logits, {}, false);
    EXPECT_NEAR(law.Chance(1, q, 3), 0.5, 1e-6);
    EXPECT_NEAR(law.Subtract(1, q), 0.5, 1e-6);
    EXPECT_EQ(law.Probability(3), 0);
    EXPECT_NEAR(law.Probability(kVocabulary - 1), 2.0 / kVocabulary, 1e-9);
    EXPECT_EQ(law.Chance(1, q, 3), 0);
  }
}

// --- What the sender of draft probabilities changes after they were validated --------------------

TEST(RowLawTest, IdsThatAreOutOfTheVocabularyTakeFromNothing) {
  constexpr int kVocabulary = 1500;  // rows are padded to 2048
  std::mt19937 random(14);
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowLaw law(&scratch), expected(&scratch);
  const std::vector<float> logits = RandomRow(&random, kVocabulary, 2);
  for (TokenId id : {kVocabulary, kVocabulary + 100, 2048, 1 << 30, std::numeric_limits<int>::max(),
                     -1, std::numeric_limits<int>::min()}) {
    const std::vector<TokenId> ids = {3, id, 7}, others = {3, 7};
    const std::vector<uint16_t> weights = Rounded({1, 2, 3}), of_others = Rounded({1, 3});
    law.Open(logits, {}, true);
    expected.Open(logits, {}, true);
    EXPECT_EQ(law.Subtract(0.9, {weights, ids, {}, 6}),
              expected.Subtract(0.9, {of_others, others, {}, 6}));
    EXPECT_EQ(LawOf(law, kVocabulary), LawOf(expected, kVocabulary));
  }
}

// A law is one afterwards, too: something can be drawn from it, and chances are chances.
TEST(RowLawTest, WeightsThatAreNoWeightsLeaveALaw) {
  constexpr int kVocabulary = 1500;
  std::mt19937 random(15);
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowLaw law(&scratch);
  const std::vector<float> logits = RandomRow(&random, kVocabulary, 2);
  std::vector<TokenId> ids(kVocabulary);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % kVocabulary);  // some repeat
  for (uint16_t bits : {0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0xBF80, 0x7F7F, 0x0000, 0x0001}) {
    for (double total : {1.0, 0.0, -1.0, 1e308, std::nan(""), double{kInf}, double{-kInf}}) {
      for (bool whole : {true, false}) {
        std::vector<uint16_t> weights(kVocabulary, base::RoundToBFloat16(1));
        for (uint16_t& weight : weights) weight = random() % 2 == 0 ? bits : weight;
        DraftLaw q{weights, whole ? absl::Span<const TokenId>() : ids, {5, 9}, total};
        law.Open(logits, {}, false);
        for (double pi : {1.0, 0.5, 1.0}) {
          for (TokenId token : {0, 5, 700, kVocabulary - 1}) {
            const double chance = law.Chance(pi, q, token);
            ASSERT_TRUE(chance >= 0 && chance <= 1) << chance;
          }
          const double mass = law.Subtract(pi, q);
          ASSERT_TRUE(mass >= 0 && mass <= 1) << mass;
          for (double uniform : {0x1p-53, 0.5, 1 - 0x1p-53}) {
            const TokenId token = law.Sample(uniform);
            ASSERT_TRUE(token >= 0 && token < kVocabulary) << token;
          }
        }
      }
    }
  }
}

// --- Instruction sets ---------------------------------------------------------------------------

class RowLawIsaTest : public testing::TestWithParam<Isa> {};

// Everything that can be read of a row, and of what three residuals leave of it.
std::vector<uint64_t> Bits(Isa isa, int vocabulary, uint32_t seed) {
  std::mt19937 random(seed);
  RowScratch scratch(vocabulary, isa);
  RowLaw law(&scratch);
  std::vector<float> logits = RandomRow(&random, vocabulary, 3);
  logits[random() % vocabulary] = kMax;
  logits[random() % vocabulary] = -kMax;
  std::vector<uint64_t> bits;
  const auto add = [&](double value) { bits.push_back(std::bit_cast<uint64_t>(value)); };
  const auto add_law = [&] {
    for (int x = 0; x < vocabulary; ++x) add(law.Probability(x));
    for (double u : {0.1, 0.5, 0.99}) bits.push_back(law.Sample(u));
  };
  law.Open(logits, {.temperature = 0.7f}, false);
  add(law.InversePerplexity());
  add_law();
  for (double pi : {1.0, 0.6, 0.9}) {
    const std::vector<uint16_t> weights = RandomWeights(&random, vocabulary);
    const DraftLaw q{weights, {}, {}, speculation::TotalWeight(weights)};
    add(law.Subtract(pi, q));
    add_law();
  }
  return bits;
}

TEST_P(RowLawIsaTest, EveryVariantHasTheBitsOfThePortableOne) {
  if (!base::Supported(GetParam())) GTEST_SKIP() << "not on this processor";
  for (int vocabulary : {2, 17, 1024, 4099}) {
    EXPECT_EQ(Bits(GetParam(), vocabulary, 7), Bits(Isa::kPortable, vocabulary, 7));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowLawIsaTest, testing::Values(Isa::kAvx2, Isa::kAvx512));

}  // namespace
}  // namespace specfabric::target
