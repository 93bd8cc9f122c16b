#include "verification/cpu/row_distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "base/bfloat16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/distribution.h"
#include "sampling/draft_row.h"
#include "sampling/sampling.h"

namespace specfabric::verification {
namespace {

using base::Isa;
using base::SamplingParams;
using base::TokenId;
using sampling::Distribution;
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

Distribution ExactDistribution(const std::vector<float>& logits, const SamplingParams& sampling) {
  const std::vector<uint8_t> kept = sampling::FilterMask(logits, sampling);
  const double max = *std::max_element(logits.begin(), logits.end());
  Distribution distribution(logits.size());
  for (size_t x = 0; x < distribution.size(); ++x) {
    distribution[x] =
        kept[x] ? std::exp((logits[x] - max) / static_cast<double>(sampling.temperature)) : 0;
  }
  return sampling::Normalized(distribution);
}

Distribution DistributionOf(const RowDistribution& distribution, int vocabulary) {
  Distribution p;
  for (int x = 0; x < vocabulary; ++x) p.push_back(distribution.Probability(x));
  return p;
}

double TotalVariation(const Distribution& a, const Distribution& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += std::abs(a[x] - b[x]) / 2;
  return sum;
}

std::vector<uint16_t> RandomDraftProbs(std::mt19937* random, int size) {
  std::vector<uint16_t> draft_probs(size);
  sampling::MakeDraftProbs(RandomRow(random, size, 2), {}, 0, absl::MakeSpan(draft_probs));
  return draft_probs;
}

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (float value : values) rounded.push_back(base::RoundToBFloat16(value));
  return rounded;
}

Distribution OpenedDistribution(const RowScratch& scratch, RowDistribution* distribution,
                                const std::vector<float>& logits,
                                const SamplingParams& sampling = {}) {
  distribution->Open(logits, sampling, false);
  return DistributionOf(*distribution, scratch.vocabulary);
}

TEST(RowDistributionTest, IsTheSoftmaxOfWhatTheFiltersKeep) {
  std::mt19937 random(1);
  for (int vocabulary : {1, 2, 3, 17, 1023, 1024, 1025, 4099, 20'000}) {
    RowScratch scratch(vocabulary, base::BestIsa());
    RowDistribution distribution(&scratch);
    for (const SamplingParams& sampling :
         {SamplingParams{}, SamplingParams{.temperature = 0.4f},
          SamplingParams{.temperature = 2.5f}, SamplingParams{.top_k = 5},
          SamplingParams{.temperature = 0.8f, .top_p = 0.7f},
          SamplingParams{.temperature = 1.5f, .top_k = 40, .min_p = 0.05f}}) {
      // Ascending, so that later chunks have larger references.
      std::vector<float> logits = RandomRow(&random, vocabulary, 3);
      for (int x = 0; x < vocabulary; ++x) logits[x] += 1e-3f * static_cast<float>(x);
      const Distribution exact = ExactDistribution(logits, sampling);
      const double most = *std::max_element(exact.begin(), exact.end());
      for (bool keep : {false, true}) {
        distribution.Open(logits, sampling, keep);
        for (int x = 0; x < vocabulary; ++x) {
          // float32 rounds the difference to the largest logit: the rarer, the coarser.
          const double tolerance =
              exact[x] == 0 ? 0 : exact[x] * (3e-7 + 1.2e-7 * std::log(most / exact[x]));
          ASSERT_NEAR(distribution.Probability(x), exact[x], tolerance) << x;
        }
        ASSERT_LT(TotalVariation(DistributionOf(distribution, vocabulary), exact), 2e-7);
      }
    }
  }
}

// The first chunk's largest logit is the second's reference, unless that would overflow.
TEST(RowDistributionTest, LaterLogitsMayBeMuchLarger) {
  constexpr int kVocabulary = 2500;
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowDistribution distribution(&scratch);
  std::mt19937 random(8);
  for (float step : {5.0f, 40.0f, 43.0f, 90.0f, 1e4f, 3e38f, -90.0f}) {
    for (float first : {0.0f, -1e6f}) {
      std::vector<float> logits = RandomRow(&random, kVocabulary, 2);
      for (int x = 0; x < kVocabulary; ++x) {
        if (x >= 1024) logits[x] += step;
        if (x < 1024) logits[x] += first;
      }
      for (bool keep : {false, true}) {
        distribution.Open(logits, {}, keep);
        ASSERT_LT(TotalVariation(DistributionOf(distribution, kVocabulary),
                                 ExactDistribution(logits, {})),
                  1e-6)
            << step;
      }
    }
  }
}

TEST(RowDistributionTest, TotalsAreTheExactOnesWithinAMillionth) {
  std::mt19937 random(2);
  for (float spread : {0.0f, 0.5f, 3.0f, 10.0f}) {
    for (int trial = 0; trial < 10; ++trial) {
      constexpr int kVocabulary = 128'256;
      RowScratch scratch(kVocabulary, base::BestIsa());
      RowDistribution distribution(&scratch);
      const std::vector<float> logits = RandomRow(&random, kVocabulary, spread);
      distribution.Open(logits, {}, false);
      const auto best = std::max_element(logits.begin(), logits.end());
      double total = 0;
      for (float logit : logits) total += std::exp(static_cast<double>(logit) - *best);
      // The most likely token's prob is exactly 1.
      EXPECT_NEAR(1 / distribution.Probability(static_cast<TokenId>(best - logits.begin())), total,
                  1e-6 * total);
    }
  }
}

TEST(RowDistributionTest, TheLargestNumbersHaveADistribution) {
  RowScratch scratch(4, base::BestIsa());
  RowDistribution distribution(&scratch);
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.top_k = 3}}) {
    EXPECT_THAT(OpenedDistribution(scratch, &distribution, {1, kMax, -kMax, 0}, sampling),
                ElementsAre(0, 1, 0, 0));
    EXPECT_THAT(OpenedDistribution(scratch, &distribution, {kMax, 3, kMax, -kMax}, sampling),
                ElementsAre(0.5, 0, 0.5, 0));
    EXPECT_THAT(OpenedDistribution(scratch, &distribution, {-kMax, 0, -kMax, -kMax}, sampling),
                ElementsAre(0, 1, 0, 0));
  }
}

TEST(RowDistributionTest, ThereIsNoneWhereOneLogitIsNotFinite) {
  std::mt19937 random(12);
  for (int vocabulary : {1, 17, 1023, 1024, 1025, 3000}) {
    for (base::Isa isa : {base::Isa::kPortable, base::BestIsa()}) {
      RowScratch scratch(vocabulary, isa);
      RowDistribution distribution(&scratch);
      std::vector<float> logits = RandomRow(&random, vocabulary, 3);
      for (const SamplingParams& sampling :
           {SamplingParams{.temperature = 0.7f}, SamplingParams{.top_k = 5},
            SamplingParams{.top_p = 0.9f}}) {
        for (bool keep : {false, true}) {
          EXPECT_TRUE(distribution.Open(logits, sampling, keep));
          for (float value : {kNan, kInf, -kInf}) {
            // The last chunk is padded where the vocabulary does not fill it.
            for (int at : {0, 15, vocabulary / 2, 1023, 1024, vocabulary - 1}) {
              if (at >= vocabulary) continue;
              const float good = std::exchange(logits[at], value);
              EXPECT_FALSE(distribution.Open(logits, sampling, keep)) << at << " of " << vocabulary;
              logits[at] = good;
            }
          }
          EXPECT_TRUE(distribution.Open(logits, sampling, keep));
        }
      }
    }
  }
}

TEST(RowDistributionTest, SamplesByTheRunningSum) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int vocabulary : {1, 3, 1024, 5000}) {
    RowScratch scratch(vocabulary, base::BestIsa());
    RowDistribution distribution(&scratch);
    const std::vector<float> logits = RandomRow(&random, vocabulary, 2);
    const Distribution exact = ExactDistribution(logits, {});
    for (bool keep : {false, true}) {
      distribution.Open(logits, {}, keep);
      for (int trial = 0; trial < 500; ++trial) {
        const double u = uniform(random);
        ASSERT_EQ(distribution.Sample(u),
                  sampling::TokenAt(absl::MakeConstSpan(exact), u, [](double p) { return p; }));
      }
      EXPECT_EQ(distribution.Sample(0x1p-53), 0);
      EXPECT_EQ(distribution.Sample(1 - 0x1p-53), vocabulary - 1);
    }
  }
}

TEST(RowDistributionTest, PerplexityIsThatOfTheDistribution) {
  std::mt19937 random(4);
  for (int vocabulary : {1, 17, 4099}) {
    for (const SamplingParams& sampling :
         {SamplingParams{}, SamplingParams{.temperature = 0.5f}, SamplingParams{.top_k = 3}}) {
      RowScratch scratch(vocabulary, base::BestIsa());
      RowDistribution distribution(&scratch);
      std::vector<float> logits = RandomRow(&random, vocabulary, 3);
      logits.back() += 4;
      if (vocabulary > 1) logits[0] = -kMax;
      double entropy = 0;
      for (double p : ExactDistribution(logits, sampling)) entropy -= p > 0 ? p * std::log(p) : 0;
      distribution.Open(logits, sampling, false);
      EXPECT_NEAR(-std::log(distribution.InversePerplexity()), entropy, 1e-6 * (1 + entropy));
    }
  }
}

// --- Residuals ----------------------------------------------------------------------------------

// q in double precision.
Distribution Exact(const DraftDistribution& q, int vocabulary) {
  Distribution distribution;
  for (int x = 0; x < vocabulary; ++x) distribution.push_back(q.UnnormalizedProb(x));
  return sampling::Normalized(distribution);
}

// Three residuals one after another, of whole rows or of a few tokens, some of them taken.
TEST(RowDistributionTest, ResidualsAreTheReferences) {
  std::mt19937 random(5);
  for (int vocabulary : {2, 17, 1025, 4099}) {
    RowScratch scratch(vocabulary, base::BestIsa());
    RowDistribution distribution(&scratch);
    for (int trial = 0; trial < 40; ++trial) {
      const std::vector<float> logits = RandomRow(&random, vocabulary, 2);
      Distribution p = ExactDistribution(logits, {});
      // What is left of nearly equal numbers has few digits: the less, the fewer.
      double tolerance = 2e-7;
      distribution.Open(logits, {}, trial % 2 == 0);
      for (double pi : {1.0, 0.7, 1.0}) {
        std::vector<uint16_t> draft_probs = RandomDraftProbs(&random, vocabulary);
        DraftDistribution q{.draft_probs = draft_probs, .ids = {}, .taken = {}, .total = 0};
        std::vector<TokenId> ids;
        if (random() % 2 == 0) {
          for (int x = 0; x < vocabulary; ++x) {
            if (random() % 3 == 0 || x == 1) ids.push_back(x);
          }
          draft_probs.resize(ids.size());
          q.draft_probs = draft_probs;
          q.ids = ids;
        }
        const TokenId taken = static_cast<TokenId>(random() % vocabulary);
        if (taken != 1) q.taken = {taken};
        for (int x = 0; x < vocabulary; ++x) q.total += q.UnnormalizedProb(x);
        const Distribution exact = Exact(q, vocabulary);
        for (int x = 0; x < vocabulary; ++x) {
          if (exact[x] == 0) continue;
          ASSERT_NEAR(distribution.Chance(pi, q, x) * exact[x], std::min(exact[x], pi * p[x]),
                      tolerance);
        }
        const sampling::Residual residual = sampling::ResidualOf(pi, p, exact);
        ASSERT_NEAR(distribution.Subtract(pi, q), residual.mass, tolerance);
        p = residual.distribution;
        if (residual.mass > 0) tolerance = 2 * (tolerance + 2e-7) / residual.mass;
        ASSERT_LT(TotalVariation(DistributionOf(distribution, vocabulary), p), tolerance);
      }
    }
  }
}

TEST(RowDistributionTest, TheDistributionStaysWhereNothingIsLeft) {
  RowScratch scratch(3, base::BestIsa());
  RowDistribution distribution(&scratch);
  const std::vector<float> logits = {0, 0, -kMax};
  const std::vector<uint16_t> whole = Rounded({1, 1, 0});
  const std::vector<TokenId> ids = {0, 1};
  for (const DraftDistribution& q :
       {DraftDistribution{whole, {}, {}, 2}, DraftDistribution{{whole.data(), 2}, ids, {}, 2}}) {
    for (bool keep : {false, true}) {
      distribution.Open(logits, {}, keep);
      EXPECT_EQ(distribution.Subtract(1, q), 0);
      EXPECT_THAT(DistributionOf(distribution, 3), ElementsAre(0.5, 0.5, 0));
      EXPECT_EQ(distribution.Subtract(0.25, q), 0);
      EXPECT_EQ(distribution.Subtract(0, q), 0);
      EXPECT_THAT(DistributionOf(distribution, 3), ElementsAre(0.5, 0.5, 0));
      // Token 0 is taken: it keeps its mass, although nothing had been subtracted from it.
      DraftDistribution rest = q;
      rest.taken = {0};
      rest.total = 1;
      EXPECT_EQ(distribution.Subtract(1, rest), 0.5);
      EXPECT_THAT(DistributionOf(distribution, 3), ElementsAre(1, 0, 0));
    }
  }
}

TEST(RowDistributionTest, ATokenThatCanBeRejectedIsGoneAfterwards) {
  std::mt19937 random(6);
  constexpr int kVocabulary = 64;
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowDistribution distribution(&scratch);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = RandomRow(&random, kVocabulary, 0.01f);
    std::vector<uint16_t> draft_probs(kVocabulary);
    sampling::MakeDraftProbs(logits, {}, 0, absl::MakeSpan(draft_probs));
    std::vector<TokenId> ids;
    for (int x = 0; x < kVocabulary; ++x) ids.push_back(x);
    DraftDistribution q{draft_probs, {}, {}, sampling::TotalProb(draft_probs)};
    if (trial % 2 == 0) q.ids = ids;
    distribution.Open(logits, {}, false);
    std::vector<double> chances;
    for (int x = 0; x < kVocabulary; ++x) chances.push_back(distribution.Chance(1, q, x));
    ASSERT_GT(distribution.Subtract(1, q), 0);
    for (int x = 0; x < kVocabulary; ++x) {
      ASSERT_EQ(chances[x] < 1, distribution.Probability(x) == 0) << trial << " " << x;
    }
  }
}

// Weights from the ends of bfloat16's range, as only a hostile draft sends them.
TEST(RowDistributionTest, ExtremeDraftProbsAreHandled) {
  constexpr int kVocabulary = 2000;
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowDistribution distribution(&scratch);
  const std::vector<float> logits(kVocabulary, 1.0f);
  for (uint16_t bits : {uint16_t{0x0001}, uint16_t{0x7F7F}}) {
    std::vector<uint16_t> draft_probs(kVocabulary, 0);
    std::fill_n(draft_probs.begin(), kVocabulary / 2, bits);
    const DraftDistribution q{draft_probs, {}, {}, sampling::TotalProb(draft_probs)};
    distribution.Open(logits, {}, false);
    EXPECT_NEAR(distribution.Chance(1, q, 3), 0.5, 1e-6);
    EXPECT_NEAR(distribution.Subtract(1, q), 0.5, 1e-6);
    EXPECT_EQ(distribution.Probability(3), 0);
    EXPECT_NEAR(distribution.Probability(kVocabulary - 1), 2.0 / kVocabulary, 1e-9);
    EXPECT_EQ(distribution.Chance(1, q, 3), 0);
  }
}

// --- What the sender of draft probabilities changes after they were validated --------------------

TEST(RowDistributionTest, IdsThatAreOutOfTheVocabularyTakeFromNothing) {
  constexpr int kVocabulary = 1500;  // rows are padded to 2048
  std::mt19937 random(14);
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowDistribution distribution(&scratch), expected(&scratch);
  const std::vector<float> logits = RandomRow(&random, kVocabulary, 2);
  for (TokenId id : {kVocabulary, kVocabulary + 100, 2048, 1 << 30, std::numeric_limits<int>::max(),
                     -1, std::numeric_limits<int>::min()}) {
    const std::vector<TokenId> ids = {3, id, 7}, others = {3, 7};
    const std::vector<uint16_t> draft_probs = Rounded({1, 2, 3}), of_others = Rounded({1, 3});
    distribution.Open(logits, {}, true);
    expected.Open(logits, {}, true);
    EXPECT_EQ(distribution.Subtract(0.9, {draft_probs, ids, {}, 6}),
              expected.Subtract(0.9, {of_others, others, {}, 6}));
    EXPECT_EQ(DistributionOf(distribution, kVocabulary), DistributionOf(expected, kVocabulary));
  }
}

// A distribution is one afterwards, too: something can be drawn from it, and chances are chances.
TEST(RowDistributionTest, InvalidDraftProbsLeaveADistribution) {
  constexpr int kVocabulary = 1500;
  std::mt19937 random(15);
  RowScratch scratch(kVocabulary, base::BestIsa());
  RowDistribution distribution(&scratch);
  const std::vector<float> logits = RandomRow(&random, kVocabulary, 2);
  std::vector<TokenId> ids(kVocabulary);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % kVocabulary);  // some repeat
  for (uint16_t bits : {0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0xBF80, 0x7F7F, 0x0000, 0x0001}) {
    for (double total : {1.0, 0.0, -1.0, 1e308, std::nan(""), double{kInf}, double{-kInf}}) {
      for (bool whole : {true, false}) {
        std::vector<uint16_t> draft_probs(kVocabulary, base::RoundToBFloat16(1));
        for (uint16_t& prob : draft_probs) prob = random() % 2 == 0 ? bits : prob;
        DraftDistribution q{draft_probs, whole ? absl::Span<const TokenId>() : ids, {5, 9}, total};
        distribution.Open(logits, {}, false);
        for (double pi : {1.0, 0.5, 1.0}) {
          for (TokenId token : {0, 5, 700, kVocabulary - 1}) {
            const double chance = distribution.Chance(pi, q, token);
            ASSERT_TRUE(chance >= 0 && chance <= 1) << chance;
          }
          const double mass = distribution.Subtract(pi, q);
          ASSERT_TRUE(mass >= 0 && mass <= 1) << mass;
          for (double uniform : {0x1p-53, 0.5, 1 - 0x1p-53}) {
            const TokenId token = distribution.Sample(uniform);
            ASSERT_TRUE(token >= 0 && token < kVocabulary) << token;
          }
        }
      }
    }
  }
}

// --- Instruction sets ---------------------------------------------------------------------------

class RowDistributionIsaTest : public testing::TestWithParam<base::Isa> {};

// Everything that can be read of a row, and of what three residuals leave of it.
std::vector<uint64_t> Bits(base::Isa isa, int vocabulary, uint32_t seed) {
  std::mt19937 random(seed);
  RowScratch scratch(vocabulary, isa);
  RowDistribution distribution(&scratch);
  std::vector<float> logits = RandomRow(&random, vocabulary, 3);
  logits[random() % vocabulary] = kMax;
  logits[random() % vocabulary] = -kMax;
  std::vector<uint64_t> bits;
  const auto add = [&](double value) { bits.push_back(std::bit_cast<uint64_t>(value)); };
  const auto add_distribution = [&] {
    for (int x = 0; x < vocabulary; ++x) add(distribution.Probability(x));
    for (double u : {0.1, 0.5, 0.99}) bits.push_back(distribution.Sample(u));
  };
  distribution.Open(logits, {.temperature = 0.7f}, false);
  add(distribution.InversePerplexity());
  add_distribution();
  for (double pi : {1.0, 0.6, 0.9}) {
    const std::vector<uint16_t> draft_probs = RandomDraftProbs(&random, vocabulary);
    const DraftDistribution q{draft_probs, {}, {}, sampling::TotalProb(draft_probs)};
    add(distribution.Subtract(pi, q));
    add_distribution();
  }
  return bits;
}

TEST_P(RowDistributionIsaTest, EveryVariantHasTheBitsOfThePortableOne) {
  if (!base::Supported(GetParam())) GTEST_SKIP() << "not on this processor";
  for (int vocabulary : {2, 17, 1024, 4099}) {
    EXPECT_EQ(Bits(GetParam(), vocabulary, 7), Bits(base::Isa::kPortable, vocabulary, 7));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowDistributionIsaTest,
                         testing::Values(base::Isa::kAvx2, base::Isa::kAvx512));

}  // namespace
}  // namespace specfabric::verification
