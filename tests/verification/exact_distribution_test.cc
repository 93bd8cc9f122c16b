// The proof by enumeration: what each lossless verification method emits has exactly the
// distribution of plain sampling from the target, for every way of drawing siblings, on chains and
// on trees.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/verification/enumeration.h"

namespace specfabric::verification {
namespace {

constexpr double kExact = 1e-12;

constexpr speculation::SiblingDraw kDraws[] = {speculation::SiblingDraw::kWithReplacement,
                                               speculation::SiblingDraw::kWithoutReplacement,
                                               speculation::SiblingDraw::kDeterministic};

struct Shape {
  int vocabulary;
  std::vector<int> widths;
  int pairs = 12;  // of models, with more and more zeros among their probabilities
};
std::string Describe(const Shape& shape, speculation::SiblingDraw draw) {
  return absl::StrCat("vocabulary ", shape.vocabulary, ", widths ",
                      absl::StrJoin(shape.widths, ","), ", ", speculation::Name(draw));
}

const std::vector<Shape>& Chains() {
  static const auto* chains = new std::vector<Shape>{
      {2, {1}},    {3, {1}},       {4, {1}},       {2, {1, 1}},   {3, {1, 1}},
      {4, {1, 1}}, {2, {1, 1, 1}}, {3, {1, 1, 1}}, {4, {1, 1, 1}}};
  return *chains;
}

const std::vector<Shape>& Trees() {
  static const auto* trees = new std::vector<Shape>{
      {2, {2}},       {3, {2}},       {3, {3}},         {4, {3}},       {4, {4}},
      {2, {2, 1}},    {3, {2, 1}},    {3, {1, 2}},      {2, {2, 2}},    {3, {2, 2}},
      {2, {3, 1}},    {3, {3, 1}},    {4, {2, 2}, 2},   {2, {2, 1, 1}}, {3, {1, 2, 1}},
      {2, {1, 1, 2}}, {2, {2, 2, 1}}, {3, {2, 1, 1}, 4}};
  return *trees;
}

ToyPair Pair(const Shape& shape, int pair) {
  return ToyPair(static_cast<uint32_t>(17 * pair + shape.vocabulary), shape.vocabulary,
                 static_cast<int>(shape.widths.size()) + 1, 0.05 * pair);
}

// Through codec and verifier.
void ExpectExact(const std::vector<Shape>& shapes, speculation::VerificationMethod verification,
                 const Verifier& verifier) {
  for (const Shape& shape : shapes) {
    for (speculation::SiblingDraw draw : kDraws) {
      for (int pair = 0; pair < shape.pairs; ++pair) {
        const Drafter drafter = ThroughTheWire(Draws(draw, shape.widths), verification);
        const Enumerated result = Enumerate(Pair(shape, pair), drafter, verifier);
        EXPECT_NEAR(result.probability, 1, kExact) << Describe(shape, draw);
        EXPECT_LE(result.error, kExact) << Describe(shape, draw) << ", pair " << pair;
      }
    }
  }
}

TEST(ExactDistributionTest, RejectionOnChains) {
  ExpectExact(Chains(), speculation::VerificationMethod::kRejection, AcceptByRejection);
}
TEST(ExactDistributionTest, RejectionOnTrees) {
  ExpectExact(Trees(), speculation::VerificationMethod::kRejection, AcceptByRejection);
}
TEST(ExactDistributionTest, BlockOnChains) {
  ExpectExact(Chains(), speculation::VerificationMethod::kTraversal, AcceptByBlock);
}
TEST(ExactDistributionTest, TraversalOnChains) {
  ExpectExact(Chains(), speculation::VerificationMethod::kTraversal, AcceptByTraversal);
}
TEST(ExactDistributionTest, TraversalOnTrees) {
  ExpectExact(Trees(), speculation::VerificationMethod::kTraversal, AcceptByTraversal);
}

TEST(ExactDistributionTest, TreesWhoseShapeDependsOnEarlierValues) {
  for (speculation::SiblingDraw draw : kDraws) {
    for (int vocabulary : {2, 3}) {
      for (int pair = 0; pair < 4; ++pair) {
        const ToyPair toy(101 + pair, vocabulary, 4, 0.1 * pair);
        const Drafter drafter = DrawsByValue(draw, 3);
        EXPECT_LE(Enumerate(toy, drafter, AcceptByRejection).error, kExact)
            << speculation::Name(draw);
        EXPECT_LE(Enumerate(toy, drafter, AcceptByTraversal).error, kExact)
            << speculation::Name(draw);
      }
    }
  }
}

// Two drafters' siblings under one node, each naming its own row.
Drafter TwoDrafters(speculation::SiblingDraw draw, bool one_row) {
  return [=](const ToyPair& toy, Outcomes& outcomes) {
    VerifyInput input = Draws(draw, {2})(toy, outcomes);
    const sampling::Distribution& other = toy.q({0});  // any other row over the same vocabulary
    if (!one_row) input.q.insert(input.q.end(), other.begin(), other.end());
    const int elder = input.tree.size();
    Text drawn;
    for (int i = 0; i < 2; ++i) {
      const base::TokenId token = DrawSibling(draw, other, drawn, outcomes);
      if (token == base::kNoToken) break;
      drawn.push_back(token);
      input.tree.Add(0, token, 0.0f);
      input.q_row.push_back(one_row ? 0 : 1);
    }
    EXPECT_LE(input.tree.size(), elder + 2);
    return input;
  };
}

TEST(ExactDistributionTest, SiblingsOfTwoDraftersEachWithItsOwnRow) {
  for (speculation::SiblingDraw draw : {speculation::SiblingDraw::kWithReplacement,
                                        speculation::SiblingDraw::kWithoutReplacement}) {
    double merged = 0;
    for (int pair = 0; pair < 4; ++pair) {
      const ToyPair toy(31 + pair, 4, 2, 0.1 * pair);
      for (const Verifier& verifier : {Verifier(AcceptByRejection), Verifier(AcceptByTraversal)}) {
        EXPECT_LE(Enumerate(toy, TwoDrafters(draw, false), verifier).error, kExact)
            << speculation::Name(draw);
        merged = std::max(merged, Enumerate(toy, TwoDrafters(draw, true), verifier).error);
      }
    }
    EXPECT_GT(merged, 1e-6) << speculation::Name(draw);
  }
}

// --- More than the rules ask for ----------------------------------------------------------------

using Change = void (*)(VerifyInput*);

void ExpectExactAfter(Change change, speculation::SiblingDraw draw,
                      const std::vector<int>& widths) {
  const Drafter drafter = [=](const ToyPair& toy, Outcomes& outcomes) {
    VerifyInput input = Draws(draw, widths)(toy, outcomes);
    change(&input);
    return input;
  };
  for (int pair = 0; pair < 8; ++pair) {
    const ToyPair toy(61 + pair, 3, static_cast<int>(widths.size()) + 1, 0.05 * pair);
    EXPECT_LE(Enumerate(toy, drafter, AcceptByRejection).error, kExact) << speculation::Name(draw);
    EXPECT_LE(Enumerate(toy, drafter, AcceptByTraversal).error, kExact) << speculation::Name(draw);
  }
}

// Given the tree, the deterministic rule samples from p whatever the draft tokens are. So it is a
// way out, at a lower acceptance, where the rows that a tree was drawn from are not at hand.
TEST(ExactDistributionTest, TheDeterministicRuleIsExactForAnyDraw) {
  const Change forget_rows = [](VerifyInput* input) {
    input->draw = speculation::SiblingDraw::kDeterministic;
    input->q.clear();
    input->q_row.clear();
  };
  for (speculation::SiblingDraw draw : kDraws) {
    ExpectExactAfter(forget_rows, draw, {2, 2});
    ExpectExactAfter(forget_rows, draw, {3});
  }
}

// A draft token to which the row gives nothing ends the siblings and leaves p alone; given that it
// did not come to that, the token has the distribution of the row that was sent.
TEST(ExactDistributionTest, RowsThatLackSomeDraftTokensAreExact) {
  const Change leave_out_least = [](VerifyInput* input) {
    for (size_t first = 0; first < input->q.size(); first += input->vocabulary) {
      const absl::Span<double> row = absl::MakeSpan(input->q).subspan(first, input->vocabulary);
      if (std::count(row.begin(), row.end(), 0.0) == input->vocabulary - 1) continue;
      *std::min_element(row.begin(), row.end(),
                        [](double a, double b) { return a != 0 && (b == 0 || a < b); }) = 0;
      const sampling::Distribution distribution = sampling::Normalized(row);
      std::copy(distribution.begin(), distribution.end(), row.begin());
    }
  };
  for (speculation::SiblingDraw draw : {speculation::SiblingDraw::kWithReplacement,
                                        speculation::SiblingDraw::kWithoutReplacement}) {
    ExpectExactAfter(leave_out_least, draw, {2, 1});
    ExpectExactAfter(leave_out_least, draw, {1, 1});
    ExpectExactAfter(leave_out_least, draw, {3});
  }
}

// Independent siblings are, up to the first that repeats, siblings without replacement.
TEST(ExactDistributionTest, IndependentSiblingsUnderTheRuleWithoutReplacement) {
  const Change change = [](VerifyInput* input) {
    input->draw = speculation::SiblingDraw::kWithoutReplacement;
  };
  ExpectExactAfter(change, speculation::SiblingDraw::kWithReplacement, {3});
  ExpectExactAfter(change, speculation::SiblingDraw::kWithReplacement, {2, 2});
}

TEST(ExactDistributionTest, ADraftEqualToTheTargetIsAcceptedWhole) {
  const ToyPair toy(5, 3, 4, 0.2);
  for (const Verifier& verifier :
       {Verifier(AcceptByRejection), Verifier(AcceptByBlock), Verifier(AcceptByTraversal)}) {
    const Drafter perfect = [](const ToyPair& toy, Outcomes& outcomes) {
      VerifyInput input = Draws(speculation::SiblingDraw::kWithoutReplacement, {})(toy, outcomes);
      int node = 0;
      for (int depth = 0; depth < 3; ++depth) {
        const sampling::Distribution& p = toy.p(PathText(input.tree, node));
        input.q.insert(input.q.end(), p.begin(), p.end());
        input.q_row.push_back(depth);
        node = input.tree.Add(node, outcomes.Choose(p), 0.0f);
      }
      return input;
    };
    const Enumerated result = Enumerate(toy, perfect, verifier);
    EXPECT_LE(result.error, kExact);
    EXPECT_NEAR(result.length, 3, kExact);
  }
}

TEST(ExactDistributionTest, WithoutDraftTokensTheRoundIsPlainSampling) {
  for (const Verifier& verifier :
       {Verifier(AcceptByRejection), Verifier(AcceptByBlock), Verifier(AcceptByTraversal)}) {
    const Enumerated result = Enumerate(
        ToyPair(5, 4, 2, 0.2), Draws(speculation::SiblingDraw::kWithoutReplacement, {}), verifier);
    EXPECT_LE(result.error, kExact);
    EXPECT_EQ(result.length, 0);
  }
}

// --- Accepted length ----------------------------------------------------------------------------

TEST(AcceptedLengthTest, BlockIsAtLeastChainRejectionAndEqualsTraversal) {
  double gain = 0;
  for (const Shape& shape : Chains()) {
    for (int pair = 0; pair < shape.pairs; ++pair) {
      const ToyPair toy = Pair(shape, pair);
      const Drafter chain = Draws(speculation::SiblingDraw::kWithReplacement, shape.widths);
      const double rejection = Enumerate(toy, chain, AcceptByRejection).length;
      const Enumerated block = Enumerate(toy, chain, AcceptByBlock);
      EXPECT_GE(block.length, rejection - kExact);
      EXPECT_NEAR(block.length, Enumerate(toy, chain, AcceptByTraversal).length, kExact);
      gain = std::max(gain, block.length / rejection);
    }
  }
  EXPECT_GT(gain, 1.01);
}

TEST(AcceptedLengthTest, TraversalIsAtLeastTopDownRejection) {
  double gain = 0;
  for (const Shape& shape : Trees()) {
    for (speculation::SiblingDraw draw : kDraws) {
      for (int pair = 0; pair < shape.pairs; ++pair) {
        const ToyPair toy = Pair(shape, pair);
        const Drafter tree = Draws(draw, shape.widths);
        const double rejection = Enumerate(toy, tree, AcceptByRejection).length;
        const double traversal = Enumerate(toy, tree, AcceptByTraversal).length;
        EXPECT_GE(traversal, rejection - kExact) << Describe(shape, draw);
        gain = std::max(gain, traversal / rejection);
      }
    }
  }
  EXPECT_GT(gain, 1.01);
}

// Leviathan et al., equation 1: with acceptance a at every position, (1 - a^(gamma+1)) / (1 - a)
// tokens a round. The rows do not depend on the text here.
TEST(AcceptedLengthTest, ChainRejectionEmitsWhatItsPaperSays) {
  const std::vector<double> p = {0.5, 0.3, 0.2}, q = {0.2, 0.2, 0.6};
  const double a = 0.2 + 0.2 + 0.2;  // sum of min(p, q)
  for (int gamma = 1; gamma <= 3; ++gamma) {
    double tokens = 0;
    Outcomes::ForEach([&](Outcomes& outcomes) {
      VerifyInput input{.tree = speculation::TokenTree::Root(0),
                        .draw = speculation::SiblingDraw::kWithReplacement,
                        .vocabulary = 3,
                        .p = p,
                        .q = q,
                        .q_row = {-1}};
      for (int i = 0; i < gamma; ++i) {
        input.tree.Add(i, outcomes.Choose(q), 0.0f);
        input.p.insert(input.p.end(), p.begin(), p.end());
        input.q_row.push_back(0);
      }
      const size_t emitted = AcceptByRejection(input, outcomes).tokens.size();
      tokens += outcomes.probability() * static_cast<double>(emitted);
    });
    EXPECT_NEAR(tokens, (1 - std::pow(a, gamma + 1)) / (1 - a), kExact);
  }
}

// --- Typical ------------------------------------------------------------------------------------

TEST(TypicalTest, IsLossyAsSaid) {
  const Verifier typical = [](const VerifyInput& input, Randomness& random) {
    return AcceptTypical(input, {}, random);
  };
  const ToyPair toy(5, 3, 3, 0);
  const Enumerated result =
      Enumerate(toy, Draws(speculation::SiblingDraw::kWithoutReplacement, {2, 1}), typical);
  EXPECT_NEAR(result.probability, 1, kExact);
  EXPECT_GT(result.error, 0.01);
}

}  // namespace
}  // namespace specfabric::verification
