#include "speculation/tree.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 0 - 1 - 3
//   |   \ 4
//   \ 2 - 5
TokenTree Example() {
  TokenTree tree = TokenTree::Root(10);
  tree.Add(0, 11, -0.1f);
  tree.Add(0, 12, -0.2f);
  tree.Add(1, 13, -0.3f);
  tree.Add(1, 14, -0.4f);
  tree.Add(2, 13, -0.5f);
  return tree;
}

TEST(TreeTest, AddReturnsTheIndex) {
  TokenTree tree = TokenTree::Root(1);
  EXPECT_EQ(tree.Add(0, 2, 0.0f), 1);
  EXPECT_EQ(tree.Add(1, 3, 0.0f), 2);
  EXPECT_EQ(tree.size(), 3);
}

TEST(TreeTest, DepthsAndMasks) {
  EXPECT_THAT(Depths(Example()), ElementsAre(0, 1, 1, 2, 2, 2));
  EXPECT_THAT(AncestorMasks(Example()), ElementsAre(0b1, 0b11, 0b101, 0b1011, 0b10011, 0b100101));
}

TEST(TreeTest, MasksOfRandomTreesAreTheNodesOnTheWayToTheRoot) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    TokenTree tree = TokenTree::Root(0);
    const int nodes = 1 + random() % kMaxVerifyNodes;
    while (tree.size() < nodes) tree.Add(random() % tree.size(), random() % 8, 0.0f);
    const std::vector<uint64_t> masks = AncestorMasks(tree);
    for (int node = 0; node < nodes; ++node) {
      uint64_t mask = 0;
      for (int at = node; at >= 0; at = tree.parents[at]) mask |= uint64_t{1} << at;
      ASSERT_EQ(masks[node], mask);
    }
  }
}

TEST(TreeTest, ChildWithFindsTheFirstDrawn) {
  TokenTree tree = Example();
  EXPECT_EQ(ChildWith(tree, 0, 12), 2);
  EXPECT_EQ(ChildWith(tree, 0, 13), -1);  // a grandchild carries it
  EXPECT_EQ(ChildWith(tree, 2, 13), 5);
  tree.Add(0, 12, 0.0f);
  EXPECT_EQ(ChildWith(tree, 0, 12), 2);
}

TEST(ValidateTest, AcceptsTheRootAloneAndTheLargestTree) {
  EXPECT_TRUE(Validate(TokenTree::Root(0), 1, 1).ok());
  EXPECT_TRUE(Validate(Example(), 6, 15).ok());
}

TEST(ValidateTest, RefusesWhatAHostileDraftMaySend) {
  const auto message = [](const TokenTree& tree) {
    return std::string(Validate(tree, 6, 15).message());
  };
  EXPECT_THAT(message(TokenTree{}), HasSubstr("0 nodes"));
  TokenTree tree = Example();
  tree.Add(0, 1, 0.0f);
  EXPECT_THAT(message(tree), HasSubstr("7 nodes: allowed are 1 to 6"));
  tree = Example();
  tree.parents.pop_back();
  EXPECT_THAT(message(tree), HasSubstr("5 parents"));
  tree = Example();
  tree.scores.push_back(0.0f);
  EXPECT_THAT(message(tree), HasSubstr("7 scores"));
  tree = Example();
  tree.parents[0] = 0;
  EXPECT_THAT(message(tree), HasSubstr("node 0 has parent 0"));
  for (int32_t parent : {-1, 3, 4, 1000, INT32_MIN}) {
    tree = Example();
    tree.parents[3] = parent;
    EXPECT_THAT(message(tree), HasSubstr("node 3 has parent"));
  }
  for (base::TokenId token : {-1, 15, INT32_MAX, INT32_MIN}) {
    tree = Example();
    tree.tokens[5] = token;
    EXPECT_THAT(message(tree), HasSubstr("allowed are 0 to 14"));
  }
}

TEST(ValidateTest, StructureAndLimitsAreCheckedApart) {
  TokenTree tree = Example();
  tree.tokens[5] = 15;
  EXPECT_TRUE(CheckStructure(tree).ok());
  EXPECT_FALSE(CheckLimits(tree, 6, 15).ok());
  EXPECT_FALSE(CheckLimits(Example(), 5, 15).ok());
  EXPECT_TRUE(CheckLimits(Example(), 6, 15).ok());
  tree = Example();
  tree.parents[2] = 2;
  EXPECT_FALSE(CheckStructure(tree).ok());
}

TEST(WalkCoupledTest, DescendsWhileAChildCarriesTheChoice) {
  const TokenTree tree = Example();
  Accepted accepted = WalkCoupled(tree, {11, 14, 0, 0, 7, 0});
  EXPECT_THAT(accepted.path, ElementsAre(1, 4));
  EXPECT_THAT(accepted.tokens, ElementsAre(11, 14, 7));
  accepted = WalkCoupled(tree, {13, 13, 13, 13, 13, 13});
  EXPECT_THAT(accepted.path, IsEmpty());
  EXPECT_THAT(accepted.tokens, ElementsAre(13));
  accepted = WalkCoupled(tree, {12, 1, 13, 2, 3, 4});
  EXPECT_THAT(accepted.path, ElementsAre(2, 5));
  EXPECT_THAT(accepted.tokens, ElementsAre(12, 13, 4));
}

TEST(WalkCoupledTest, ARootAloneIsAPlainDecode) {
  const Accepted accepted = WalkCoupled(TokenTree::Root(5), {9});
  EXPECT_THAT(accepted.path, IsEmpty());
  EXPECT_THAT(accepted.tokens, ElementsAre(9));
}

TEST(DraftRowsOfTreeTest, NumberTheNodesThatHaveChildren) {
  EXPECT_THAT(DraftRows(Example()), ElementsAre(-1, 0, 0, 1, 1, 2));
  EXPECT_EQ(NodesWithChildren(Example()), 3);
  EXPECT_THAT(DraftRows(TokenTree::Root(1)), ElementsAre(-1));
  EXPECT_EQ(NodesWithChildren(TokenTree::Root(1)), 0);
}

TEST(PruneTest, KeepsParentsOrderAndRows) {
  TokenTree tree = TokenTree::Root(9);
  tree.Add(0, 1, 0);
  tree.Add(1, 2, 0);
  tree.Add(2, 3, 0);
  tree.Add(0, 4, 0);
  tree.Add(4, 5, 0);
  EXPECT_THAT(Prune({tree}, 2, 10).tree.parents, ElementsAre(-1, 0, 1, 0, 3));
  EXPECT_THAT(Prune({tree}, 2, 10).tree.tokens, ElementsAre(9, 1, 2, 4, 5));
  EXPECT_THAT(Prune({tree}, 1, 10).tree.tokens, ElementsAre(9, 1, 4));
  EXPECT_THAT(Prune({tree}, 9, 3).tree.tokens, ElementsAre(9, 1, 2, 3));
  EXPECT_EQ(Prune({tree}, 0, 10).tree.size(), 1);
  EXPECT_EQ(Prune({tree}, 10, 0).tree.size(), 1);
  EXPECT_THAT(Prune({tree}, 2, 10).draft_row, IsEmpty());
  const Draft draft = {tree, SiblingDraw::kWithReplacement, DraftRows(tree)};
  EXPECT_THAT(Prune(draft, 2, 10).draft_row, ElementsAre(-1, 0, 1, 0, 3)) << "rows stay";
  EXPECT_EQ(Prune(draft, 2, 10).draw, SiblingDraw::kWithReplacement);
}

}  // namespace
}  // namespace specfabric::speculation
