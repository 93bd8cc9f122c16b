#include "speculation/merge.h"

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

using base::TokenId;
using testing::ElementsAre;

TokenTree RandomTree(std::mt19937& random, int most, int tokens) {
  TokenTree tree = TokenTree::Root(5);
  const int nodes = static_cast<int>(random() % (most + 1));
  for (int i = 0; i < nodes; ++i) {
    tree.Add(static_cast<int>(random() % tree.size()), static_cast<TokenId>(random() % tokens),
             -static_cast<float>(random() % 8));
  }
  return tree;
}

std::vector<TokenId> PathTo(const TokenTree& tree, int node) {
  std::vector<TokenId> path;
  for (; node > 0; node = tree.parents[node]) path.insert(path.begin(), tree.tokens[node]);
  return path;
}

std::set<std::vector<TokenId>> Paths(const TokenTree& tree) {
  std::set<std::vector<TokenId>> paths;
  for (int node = 1; node < tree.size(); ++node) paths.insert(PathTo(tree, node));
  return paths;
}

std::vector<int32_t> OfFirst(const MergedTree& merged) {
  std::vector<int32_t> of_first;
  for (int node = 0; node < merged.tree.size(); ++node) of_first.push_back(merged.of_first(node));
  return of_first;
}

TEST(MergeTest, NodesProposedByBothAreMerged) {
  TokenTree first = TokenTree::Root(1);
  first.Add(first.Add(0, 2, -0.1f), 3, -0.2f);
  TokenTree second = TokenTree::Root(1);
  const int two = second.Add(0, 2, -0.5f);
  second.Add(two, 4, -0.6f);
  second.Add(0, 9, -0.7f);
  const MergedTree merged = Merge(first, second, 63);
  EXPECT_THAT(merged.tree.tokens, ElementsAre(1, 2, 3, 4, 9));
  EXPECT_THAT(merged.tree.parents, ElementsAre(-1, 0, 1, 1, 0));
  EXPECT_THAT(merged.tree.scores, ElementsAre(0, -0.1f, -0.2f, -0.6f, -0.7f));
  EXPECT_THAT(OfFirst(merged), ElementsAre(0, 1, 2, -1, -1));
  EXPECT_THAT(merged.of_second, ElementsAre(0, 1, -1, 2, 3));
}

TEST(MergeTest, AFirstTreeThatIsMovedInIsNotCopied) {
  TokenTree first = TokenTree::Root(1);
  first.Add(0, 2, -0.1f);
  first.tokens.reserve(8);
  const TokenId* const tokens = first.tokens.data();
  TokenTree second = TokenTree::Root(1);
  second.Add(0, 3, -0.2f);
  const MergedTree merged = Merge(std::move(first), second, 63);
  EXPECT_EQ(merged.tree.tokens.data(), tokens);
  EXPECT_THAT(merged.tree.tokens, ElementsAre(1, 2, 3));
}

TEST(MergeTest, IsTheUnionOfPaths) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const TokenTree first = RandomTree(random, 30, 4), second = RandomTree(random, 30, 4);
    const MergedTree merged = Merge(first, second, 100);
    std::set<std::vector<TokenId>> wanted = Paths(first);
    wanted.merge(Paths(second));
    ASSERT_EQ(Paths(merged.tree), wanted);
    ASSERT_TRUE(Validate(merged.tree, 101, 6).ok());
    for (int node = 1; node < merged.tree.size(); ++node) {
      const int in_first = merged.of_first(node), in_second = merged.of_second[node];
      ASSERT_TRUE(in_first >= 0 || in_second >= 0);
      if (in_first >= 0) {
        ASSERT_EQ(PathTo(merged.tree, node), PathTo(first, in_first));
      }
      if (in_second >= 0) {
        ASSERT_EQ(PathTo(merged.tree, node), PathTo(second, in_second));
      }
    }
  }
}

TEST(MergeTest, ABudgetCutsTheSecondAlone) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 1000; ++trial) {
    const TokenTree first = RandomTree(random, 20, 4), second = RandomTree(random, 30, 4);
    const int budget = first.size() - 1 + static_cast<int>(random() % 10);
    const MergedTree merged = Merge(first, second, budget);
    ASSERT_LE(merged.tree.size() - 1, budget);
    ASSERT_TRUE(Validate(merged.tree, budget + 1, 6).ok());
    for (int node = 0; node < first.size(); ++node) ASSERT_EQ(merged.of_first(node), node);
    const int whole = Merge(first, second, 100).tree.size() - 1;
    ASSERT_EQ(merged.tree.size() - 1, std::min(budget, whole));
  }
}

// Whatever the target would choose at each prefix, it is told as much by the union as by the better
// of the two, and the same text: what makes merging free of risk where any tree may be verified.
TEST(MergeTest, TheUnionAcceptsWhatTheBetterDrafterWouldHave) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const TokenTree first = RandomTree(random, 20, 3), second = RandomTree(random, 20, 3);
    const TokenTree both = Merge(first, second, 63).tree;
    const uint32_t salt = static_cast<uint32_t>(random());
    const auto walk = [&](const TokenTree& tree) {
      std::vector<TokenId> chosen;
      for (int node = 0; node < tree.size(); ++node) {
        uint32_t choice = salt;
        for (TokenId token : PathTo(tree, node)) choice = choice * 31 + token + 7;
        chosen.push_back(static_cast<TokenId>((choice >> 8) % 3));
      }
      return WalkCoupled(tree, chosen).tokens;
    };
    const std::vector<TokenId> a = walk(first), b = walk(second), u = walk(both);
    ASSERT_GE(u.size(), std::max(a.size(), b.size()));
    for (const auto& one : {a, b}) ASSERT_TRUE(std::equal(one.begin(), one.end(), u.begin()));
  }
}

TEST(MergeTest, NodesNameTheirProposalSource) {
  Draft ngram_lookup = {.tree = TokenTree::Root(1), .sources = {{}}};
  ngram_lookup.tree.Add(0, 2, -0.3f);
  ngram_lookup.tree.Add(0, 7, -0.4f);
  ngram_lookup.sources.assign(3, {0, ProposalSource::kNgramLookup, true});
  Draft one = {.tree = TokenTree::Root(1), .drafter = 1};
  one.tree.Add(0, 2, -0.5f);
  one.tree.Add(0, 3, -0.6f);
  Draft two = {.tree = TokenTree::Root(1), .drafter = 2};
  two.tree.Add(0, 3, -0.1f);
  two.tree.Add(0, 4, -0.2f);
  const Draft all = Merge(two, Merge(one, ngram_lookup));
  EXPECT_EQ(all.drafter, 2);
  EXPECT_THAT(all.tree.tokens, ElementsAre(1, 3, 4, 2, 7));
  EXPECT_THAT(all.tree.scores, ElementsAre(0, -0.1f, -0.2f, -0.3f, -0.4f));
  const auto source = [&](int node) {
    return std::pair(int{all.source(node).drafter}, all.source(node).proposed_by);
  };
  EXPECT_EQ(source(1), std::pair(2, ProposalSource::kSeveral));
  EXPECT_EQ(source(2), std::pair(2, ProposalSource::kDrafter));
  EXPECT_EQ(source(3), std::pair(1, ProposalSource::kSeveral));
  EXPECT_EQ(source(4), std::pair(0, ProposalSource::kNgramLookup));
  EXPECT_TRUE(all.source(3).from_ngram_lookup);
  EXPECT_FALSE(all.source(1).from_ngram_lookup);
  // Whoever comes first, the n-gram lookup's node becomes the drafter's that agrees.
  EXPECT_EQ(Merge(ngram_lookup, one).source(1).drafter, 1);
  Draft kept = all;
  Keep({2, 3}, &kept);
  EXPECT_EQ(kept.source(1).proposed_by, ProposalSource::kDrafter);
  EXPECT_EQ(kept.source(2).proposed_by, ProposalSource::kSeveral);
}

TEST(MergeTest, AgreementIsDecidedWhereTheTreeEndsOrDiffers) {
  TokenTree tree = TokenTree::Root(1);
  const int two = tree.Add(0, 2, 0);
  tree.Add(two, 3, 0);
  const auto agrees = [&](const std::vector<TokenId>& said) {
    const Agreement agreement = AgreesWith(tree, said);
    return std::pair(agreement.levels, agreement.decided);
  };
  EXPECT_EQ(agrees({}), std::pair(0, false));
  EXPECT_EQ(agrees({2}), std::pair(1, false));
  EXPECT_EQ(agrees({2, 3}), std::pair(2, true));
  EXPECT_EQ(agrees({2, 3, 4}), std::pair(2, true));
  EXPECT_EQ(agrees({2, 9}), std::pair(1, true));
  EXPECT_EQ(agrees({8}), std::pair(0, true));
}

TEST(MergeTest, OnlyWhereAnyTreeMayBeVerified) {
  EXPECT_TRUE(Merges(VerificationMethod::kCoupled));
  EXPECT_TRUE(Merges(VerificationMethod::kTypical));
  EXPECT_FALSE(Merges(VerificationMethod::kRejection));
  EXPECT_FALSE(Merges(VerificationMethod::kTraversal));
}

}  // namespace
}  // namespace specfabric::speculation
