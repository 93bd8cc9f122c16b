// The verification methods as they run in service, with Philox, and what they ask of their input.

#include "verification/reference/acceptance.h"

#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/philox.h"
#include "sampling/uniform.h"
#include "tests/verification/enumeration.h"

namespace specfabric::verification {
namespace {

using base::TokenId;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// --- Sampled ------------------------------------------------------------------------------------

// What a draft draws in service: purpose kDraft, one number a node.
TokenId DraftToken(uint64_t seed, uint32_t position, uint32_t draw, int node,
                   const sampling::Distribution& probs) {
  const sampling::DrawSite site{.purpose = sampling::Purpose::kDraft,
                                .position = position,
                                .draw = draw,
                                .node = static_cast<uint32_t>(node)};
  double total = 0;
  for (double prob : probs) total += prob;
  const double wanted = sampling::UniformFromWord(sampling::PhiloxWord(seed, site, 0)) * total;
  double sum = 0;
  for (size_t x = 0; x < probs.size(); ++x) {
    sum += probs[x];
    if (sum > wanted) return static_cast<TokenId>(x);
  }
  return base::kNoToken;
}

// A tree of these widths at one place of a sequence's life.
VerifyInput SampledDraft(const ToyPair& toy, speculation::SiblingDraw draw,
                         const std::vector<int>& widths, uint64_t seed, uint32_t position,
                         uint32_t draw_number) {
  VerifyInput input{.tree = speculation::TokenTree::Root(0),
                    .draw = draw,
                    .vocabulary = toy.vocabulary(),
                    .p = {},
                    .q = {},
                    .q_row = {-1}};
  for (int node = 0; node < input.tree.size(); ++node) {
    const Text path = PathText(input.tree, node);
    if (path.size() == widths.size()) break;
    const sampling::Distribution& q = toy.q(path);
    const int row = static_cast<int>(input.q.size()) / toy.vocabulary();
    input.q.insert(input.q.end(), q.begin(), q.end());
    sampling::Distribution left = q;
    for (int i = 0; i < widths[path.size()]; ++i) {
      const TokenId token = DraftToken(seed, position + static_cast<uint32_t>(path.size()),
                                       draw_number, input.tree.size(), left);
      if (token == base::kNoToken) break;
      if (draw == speculation::SiblingDraw::kWithoutReplacement) left[token] = 0;
      input.tree.Add(node, token, 0.0f);
      input.q_row.push_back(row);
    }
  }
  AddTargetRows(toy, &input);
  return input;
}

// Counts of the first toy.length() tokens over many rounds of one sequence, all at one position and
// told apart by their draw number alone.
std::vector<int> Sampled(const ToyPair& toy, speculation::SiblingDraw draw,
                         const std::vector<int>& widths, const Verifier& verifier, uint64_t seed,
                         int rounds) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int> counts(static_cast<size_t>(std::pow(toy.vocabulary(), toy.length())), 0);
  for (int round = 0; round < rounds; ++round) {
    const uint32_t number = sampling::DrawNumber(1, static_cast<uint32_t>(round));
    const VerifyInput input = SampledDraft(toy, draw, widths, seed, 7, number);
    PhiloxRandomness philox(seed, 7, number, input.tree);
    Text text = verifier(input, philox).tokens;
    text.resize(std::min<size_t>(text.size(), toy.length()));
    while (static_cast<int>(text.size()) < toy.length()) {
      const sampling::Distribution& p = toy.p(text);
      text.push_back(std::discrete_distribution<TokenId>(p.begin(), p.end())(random));
    }
    size_t index = 0;
    for (TokenId token : text) index = index * toy.vocabulary() + token;
    ++counts[index];
  }
  return counts;
}

// Of Pearson's chi-square; zero if something impossible was seen. Texts expected less than five
// times are put together.
double PValue(const std::vector<int>& counts, const std::vector<double>& distribution) {
  double total = 0;
  for (int count : counts) total += count;
  double statistic = 0, rare_count = 0, rare_expected = 0;
  int cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < distribution.size(); ++i) {
    const double expected = total * distribution[i];
    if (expected == 0 && counts[i] > 0) return 0;
    if (expected >= 5) {
      add(counts[i], expected);
    } else {
      rare_count += counts[i];
      rare_expected += expected;
    }
  }
  if (rare_expected > 0) add(rare_count, rare_expected);
  return boost::math::cdf(boost::math::complement(boost::math::chi_squared(cells - 1), statistic));
}

constexpr int kRounds = 50'000;

TEST(SampledDistributionTest, PhiloxDrivenVerifiersKeepTheTargetDistribution) {
  const ToyPair toy(41, 3, 3, 0);
  const std::vector<double> distribution = PlainDistribution(toy);
  for (uint64_t seed : {1, 2, 3}) {
    for (speculation::SiblingDraw draw : {speculation::SiblingDraw::kWithReplacement,
                                          speculation::SiblingDraw::kWithoutReplacement}) {
      for (const Verifier& verifier : {Verifier(AcceptByRejection), Verifier(AcceptByTraversal)}) {
        EXPECT_GT(PValue(Sampled(toy, draw, {2, 2}, verifier, seed, kRounds), distribution), 0.001)
            << speculation::Name(draw) << ", seed " << seed;
      }
    }
    EXPECT_GT(PValue(Sampled(toy, speculation::SiblingDraw::kWithReplacement, {1, 1}, AcceptByBlock,
                             seed, kRounds),
                     distribution),
              0.001);
  }
}

TEST(SampledDistributionTest, TheDraftsNumbersInTheVerifierAreCaught) {
  // Decides with the number that drew the node.
  class DraftsNumbers final : public Randomness {
   public:
    DraftsNumbers(uint64_t seed, uint32_t draw, const speculation::TokenTree& tree)
        : seed_(seed),
          draw_(draw),
          depths_(speculation::Depths(tree)),
          philox_(seed, 7, draw, tree) {}
    bool Accept(int node, double probability) override {
      const sampling::DrawSite site{.purpose = sampling::Purpose::kDraft,
                                    .position = 7 + static_cast<uint32_t>(depths_[node]) - 1,
                                    .draw = draw_,
                                    .node = static_cast<uint32_t>(node)};
      return sampling::UniformFromWord(sampling::PhiloxWord(seed_, site, 0)) < probability;
    }
    TokenId Sample(int node, absl::Span<const double> probs) override {
      return philox_.Sample(node, probs);
    }

   private:
    uint64_t seed_;
    uint32_t draw_;
    std::vector<int32_t> depths_;
    PhiloxRandomness philox_;
  };
  const ToyPair toy(41, 3, 3, 0);
  uint32_t round = 0;
  const Verifier broken = [&](const VerifyInput& input, Randomness&) {
    DraftsNumbers numbers(1, sampling::DrawNumber(1, round++), input.tree);
    return AcceptByRejection(input, numbers);
  };
  EXPECT_LT(PValue(Sampled(toy, speculation::SiblingDraw::kWithoutReplacement, {2, 2}, broken, 1,
                           kRounds),
                   PlainDistribution(toy)),
            1e-6);
}

TEST(SampledDistributionTest, BlockAndTraversalDecideAlikeOnEveryChain) {
  for (uint32_t round = 0; round < 2000; ++round) {
    const ToyPair toy(round % 50, 2 + round % 3, 4, 0.01 * (round % 20));
    const VerifyInput input =
        SampledDraft(toy, speculation::SiblingDraw::kWithReplacement, {1, 1, 1}, 5, 9, round);
    PhiloxRandomness philox(5, 9, round, input.tree);
    const speculation::Accepted block = AcceptByBlock(input, philox);
    const speculation::Accepted traversal = AcceptByTraversal(input, philox);
    ASSERT_EQ(block.path, traversal.path);
    ASSERT_EQ(block.tokens, traversal.tokens);
  }
}

// --- Numbers ------------------------------------------------------------------------------------

TEST(PhiloxRandomnessTest, UniformsAreNeverZeroOrOne) {
  EXPECT_EQ(sampling::UniformFromWord(0), 0x1p-33);
  EXPECT_EQ(sampling::UniformFromWord(0xFFFFFFFFu), 1 - 0x1p-33);
  EXPECT_EQ(sampling::UniformFromWords(0, 0), 0x1p-53);
  EXPECT_EQ(sampling::UniformFromWords(0xFFFFFFFFu, 0xFFFFFFFFu), 1 - 0x1p-53);
}

TEST(PhiloxRandomnessTest, NumbersDifferByFunctionNodeDrawAndPosition) {
  speculation::TokenTree tree = speculation::TokenTree::Root(0);
  tree.Add(0, 1, 0.0f);
  tree.Add(0, 2, 0.0f);
  tree.Add(1, 3, 0.0f);
  std::set<double> seen;
  int drawn = 0;
  for (uint32_t position : {1, 2}) {
    for (uint32_t draw :
         {sampling::DrawNumber(0, 0), sampling::DrawNumber(0, 1), sampling::DrawNumber(1, 0)}) {
      const PhiloxRandomness philox(11, position, draw, tree);
      for (int node = 0; node < tree.size(); ++node, drawn += 2) {
        seen.insert(philox.AcceptUniform(node));
        seen.insert(philox.ResidualUniform(node));
      }
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), drawn);
}

TEST(PhiloxRandomnessTest, NeverSamplesProbabilityZero) {
  const speculation::TokenTree tree = speculation::TokenTree::Root(0);
  for (uint32_t draw = 0; draw < 1000; ++draw) {
    PhiloxRandomness philox(3, 1, draw, tree);
    EXPECT_THAT(philox.Sample(0, {0.0, 1e-300, 0.0}), 1);
    EXPECT_FALSE(philox.Accept(0, 0));
    EXPECT_TRUE(philox.Accept(0, 1));
  }
}

// --- Input --------------------------------------------------------------------------------------

// Two siblings and a child of the first; vocabulary 3.
VerifyInput SmallInput() {
  VerifyInput input;
  input.tree = speculation::TokenTree::Root(0);
  input.tree.Add(0, 1, 0.0f);
  input.tree.Add(0, 2, 0.0f);
  input.tree.Add(1, 0, 0.0f);
  input.draw = speculation::SiblingDraw::kWithoutReplacement;
  input.vocabulary = 3;
  for (int node = 0; node < 4; ++node) input.p.insert(input.p.end(), {0.5, 0.25, 0.25});
  input.q = {0.2, 0.3, 0.5, 1, 0, 0};
  input.q_row = {-1, 0, 0, 1};
  return input;
}

TEST(ValidateInputTest, SaysWhatIsWrong) {
  EXPECT_TRUE(ValidateInput(speculation::VerificationMethod::kRejection, SmallInput()).ok());
  EXPECT_TRUE(ValidateInput(speculation::VerificationMethod::kTraversal, SmallInput()).ok());
  const auto refused = [](const std::function<void(VerifyInput&)>& spoil) {
    VerifyInput input = SmallInput();
    spoil(input);
    return std::string(ValidateInput(speculation::VerificationMethod::kRejection, input).message());
  };
  EXPECT_EQ(refused([](VerifyInput& i) { i.draw = speculation::SiblingDraw::kCoupledTopK; }),
            "siblings drawn as coupled_top_k cannot be verified by rejection");
  EXPECT_EQ(refused([](VerifyInput& i) { i.p.pop_back(); }), "p has 11 values: must be 12");
  EXPECT_EQ(refused([](VerifyInput& i) { i.p[4] = 0.5; }), "p row 1 sums to 1.25: must sum to 1");
  EXPECT_EQ(refused([](VerifyInput& i) { i.q[1] = -0.5; }),
            "q row 0 holds -0.5: allowed are 0 to 1");
  EXPECT_EQ(refused([](VerifyInput& i) { i.q[0] = std::nan(""); }),
            "q row 0 holds nan: allowed are 0 to 1");
  EXPECT_EQ(refused([](VerifyInput& i) { i.q_row[2] = 2; }), "node 2 names q row 2: there are 2");
  EXPECT_THAT(refused([](VerifyInput& i) { i.q.pop_back(); }), HasSubstr("q has 5 values"));
  EXPECT_THAT(refused([](VerifyInput& i) { i.tree.tokens[1] = 3; }), HasSubstr("token 3"));
  EXPECT_THAT(refused([](VerifyInput& i) { i.vocabulary = 0; }), HasSubstr("vocabulary is 0"));
}

TEST(ValidateInputTest, DraftRowsAreAskedForOnlyWhereTheyAreRead) {
  VerifyInput input = SmallInput();
  input.q.clear();
  input.q_row.clear();
  EXPECT_FALSE(ValidateInput(speculation::VerificationMethod::kTraversal, input).ok());
  EXPECT_TRUE(ValidateInput(speculation::VerificationMethod::kCoupled, input).ok());
  EXPECT_TRUE(ValidateInput(speculation::VerificationMethod::kTypical, input).ok());
  input.draw = speculation::SiblingDraw::kDeterministic;
  EXPECT_TRUE(ValidateInput(speculation::VerificationMethod::kTraversal, input).ok());
}

TEST(DraftDistributionTest, FollowsTheDraw) {
  VerifyInput input = SmallInput();
  EXPECT_THAT(input.DraftDistribution(1), ElementsAre(0.2, 0.3, 0.5));
  EXPECT_THAT(input.DraftDistribution(2), ElementsAre(0.2 / 0.7, 0, 0.5 / 0.7));
  input.draw = speculation::SiblingDraw::kWithReplacement;
  EXPECT_THAT(input.DraftDistribution(2), ElementsAre(0.2, 0.3, 0.5));
  input.draw = speculation::SiblingDraw::kDeterministic;
  EXPECT_THAT(input.DraftDistribution(2), ElementsAre(0, 0, 1));
}

// A draft that claims a row it cannot have drawn from costs speed, and never brings out a token
// that the target excludes.
TEST(DishonestDraftTest, DraftTokensWithoutProbabilityEndTheSiblings) {
  for (const Verifier& verifier : {Verifier(AcceptByRejection), Verifier(AcceptByTraversal)}) {
    VerifyInput input = SmallInput();
    input.q = {1, 0, 0, 0, 1, 0};
    for (uint32_t draw = 0; draw < 200; ++draw) {
      PhiloxRandomness philox(1, 5, draw, input.tree);
      EXPECT_THAT(verifier(input, philox).path, IsEmpty());
    }
    input = SmallInput();
    for (int node = 0; node < 4; ++node) input.p[3 * node + 1] = 0, input.p[3 * node] = 0.75;
    for (uint32_t draw = 0; draw < 200; ++draw) {
      PhiloxRandomness philox(1, 5, draw, input.tree);
      EXPECT_THAT(verifier(input, philox).tokens, testing::Each(testing::Ne(1)));
    }
  }
}

// Rows as float32 arithmetic gives them: nothing is refused, and the distribution stays as near as
// they are.
TEST(RoundedRowsTest, KeepTheDistribution) {
  const ToyPair toy(6, 3, 3, 0.1);
  const Verifier rounded = [](const VerifyInput& exact, Randomness& random) {
    VerifyInput input = exact;
    for (double& value : input.p) value = static_cast<float>(value) * (1 + 1e-7);
    for (double& value : input.q) value = static_cast<float>(value) * (1 - 1e-7);
    EXPECT_TRUE(ValidateInput(speculation::VerificationMethod::kTraversal, input).ok());
    return AcceptByTraversal(input, random);
  };
  EXPECT_LT(
      Enumerate(toy, Draws(speculation::SiblingDraw::kWithoutReplacement, {2, 2}), rounded).error,
      1e-6);
}

TEST(TypicalTest, TakesTheLongestPathOfLikelyTokens) {
  VerifyInput input = SmallInput();
  input.p = {0.05, 0.9, 0.05, 0.9, 0.05, 0.05, 0.4, 0.3, 0.3, 0, 0, 1};
  PhiloxRandomness philox(1, 5, 0, input.tree);
  const speculation::Accepted accepted = AcceptTypical(input, {}, philox);
  EXPECT_THAT(accepted.path, ElementsAre(1, 3));
  EXPECT_THAT(accepted.tokens, ElementsAre(1, 0, 2));
  EXPECT_THAT(AcceptTypical(input, {.epsilon = 0.95, .delta = 10}, philox).path, IsEmpty());
}

TEST(VerificationMethodTest, NamesGoBothWays) {
  for (int i = 0; i < speculation::kVerificationMethods; ++i) {
    const speculation::VerificationMethod verification =
        static_cast<speculation::VerificationMethod>(i);
    EXPECT_EQ(speculation::ParseVerificationMethod(speculation::Name(verification)).value(),
              verification);
    EXPECT_EQ(speculation::Lossless(verification),
              verification != speculation::VerificationMethod::kTypical);
  }
  for (int i = 0; i < speculation::kSiblingDraws; ++i) {
    const speculation::SiblingDraw draw = static_cast<speculation::SiblingDraw>(i);
    EXPECT_EQ(speculation::ParseSiblingDraw(speculation::Name(draw)).value(), draw);
  }
  EXPECT_EQ(speculation::ParseVerificationMethod("greedy").status().message(),
            "verification is 'greedy': allowed are coupled, rejection, traversal, typical");
  EXPECT_FALSE(speculation::ParseSiblingDraw("").ok());
}

}  // namespace
}  // namespace specfabric::verification
