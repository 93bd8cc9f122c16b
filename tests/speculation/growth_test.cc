#include "speculation/growth.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

GrowthPolicy Parsed(std::string_view text) {
  auto policy = GrowthPolicy::Parse(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

TEST(GrowthPolicyTest, ParsesAndPrints) {
  EXPECT_THAT(Parsed("1,1,3,1,1").widths, ElementsAre(1, 1, 3, 1, 1));
  EXPECT_EQ(Parsed("1,1,3,1,1").MaxNodes(), 1 + 1 + 3 + 3 + 3);
  EXPECT_EQ(Parsed("4").MaxNodes(), 4);
  EXPECT_THAT(Parsed("best:20").widths, IsEmpty());
  EXPECT_EQ(Parsed("best:20").ToString(), "best:20:4:8");
  EXPECT_EQ(Parsed("best:20:3").ToString(), "best:20:3:8");
  EXPECT_EQ(Parsed("best:20:3:5").MaxNodes(), 20);
  for (const char* text : {"1,1,3,1,1", "best:20:3:5", "255", "best:255:255:255"}) {
    EXPECT_EQ(Parsed(text).ToString(), text);
  }
}

TEST(GrowthPolicyTest, WithinFewNodesIsDeepBeforeItIsWide) {
  const GrowthPolicy policy = Parsed("2,2,1,1");
  EXPECT_THAT(policy.Within(1).widths, ElementsAre(1));
  EXPECT_THAT(policy.Within(3).widths, ElementsAre(1, 1, 1));
  EXPECT_THAT(policy.Within(6).widths, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(policy.Within(7).widths, ElementsAre(2, 1, 1, 1));  // but for one of the last level
  EXPECT_THAT(policy.Within(8).widths, ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(policy.Within(10).widths, ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(policy.Within(11).widths, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(policy.Within(14).widths, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(policy.Within(255).widths, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(Parsed("1,1,3,1").Within(4).widths, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Parsed("1,1,3,1").Within(5).widths, ElementsAre(1, 1, 2, 1));
  EXPECT_THAT(Parsed("1,1,3,1").Within(6).widths, ElementsAre(1, 1, 2, 1));
  EXPECT_EQ(Parsed("best:20:3:5").Within(2).ToString(), "best:20:3:5");
}

TEST(GrowthPolicyTest, SaysWhatWasGivenAndWhatIsAllowed) {
  for (const char* text : {"",
                           "x",
                           "1,",
                           ",1",
                           "1,,1",
                           "0",
                           "-1",
                           "1,0",
                           "256",
                           "16,16",
                           "2,2,2,2,2,2,2,2",
                           "99999999999999999999",
                           "255,255,255,255,255,255,255,255",
                           "best:",
                           "best",
                           "best:0",
                           "best:256",
                           "best:4:0",
                           "best:4:4:0",
                           "best:4:4:4:4",
                           "best:4,4",
                           "1;1"}) {
    const auto policy = GrowthPolicy::Parse(text);
    ASSERT_FALSE(policy.ok()) << text;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(std::string("\"") + text + "\""));
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr("allowed are"));
    EXPECT_THAT(std::string(policy.status().message()), testing::Not(HasSubstr("\n")));
  }
}

// A fake draft: candidates and log-probabilities are a function of the node's path.
struct FakeDraft {
  uint32_t salt;
  void Candidates(const TokenTree& tree, int node, int width,
                  std::vector<sampling::ScoredToken>* candidates,
                  std::vector<float>* logprobs) const {
    uint32_t seed = salt;
    for (int at = node; at >= 0; at = tree.parents[at]) seed = seed * 31 + tree.tokens[at];
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(0.01f, 1.0f);
    candidates->clear();
    logprobs->clear();
    for (int i = 0; i < width; ++i) {
      candidates->push_back({static_cast<int32_t>(random() % 1000), -static_cast<float>(i)});
      logprobs->push_back(std::log(uniform(random) / width));
    }
  }
};

struct Grown {
  TokenTree tree;
  int steps = 0;
};

Grown Grow(const GrowthPolicy& policy, int max_nodes, const FakeDraft& draft,
           int max_steps = 1000) {
  TreeGrower grower(policy, 7, max_nodes);
  int steps = 0;
  std::vector<sampling::ScoredToken> candidates;
  std::vector<float> logprobs;
  while (steps < max_steps) {
    const std::vector<int32_t> frontier = grower.Frontier();
    if (frontier.empty()) break;
    EXPECT_TRUE(std::is_sorted(frontier.begin(), frontier.end()));
    ++steps;
    const std::vector<int32_t> depths = Depths(grower.tree());
    for (int32_t node : frontier) {
      draft.Candidates(grower.tree(), node, grower.Width(depths[node]), &candidates, &logprobs);
      grower.Expand(node, candidates, logprobs);
    }
  }
  return {std::move(grower).Take(), steps};
}

TEST(TreeGrowerTest, WidthsGiveTheirShape) {
  const Grown grown = Grow(Parsed("2,1,3"), 100, {1});
  EXPECT_THAT(grown.tree.parents, ElementsAre(-1, 0, 0, 1, 2, 3, 3, 3, 4, 4, 4));
  EXPECT_EQ(grown.steps, 3);
}

TEST(TreeGrowerTest, MaxNodesCutsInTheMiddleOfALevel) {
  EXPECT_THAT(Grow(Parsed("2,1,3"), 6, {1}).tree.parents, ElementsAre(-1, 0, 0, 1, 2, 3, 3));
  EXPECT_THAT(Grow(Parsed("2,1,3"), 1, {1}).tree.parents, ElementsAre(-1, 0));
  for (int none : {0, -3}) {
    const Grown grown = Grow(Parsed("2,1,3"), none, {1});
    EXPECT_EQ(grown.tree.size(), 1);
    EXPECT_EQ(grown.steps, 0);
  }
}

TEST(TreeGrowerTest, FewerCandidatesThanWantedAreFine) {
  TreeGrower grower(Parsed("3,2"), 7, 100);
  grower.Expand(0, {{4, 0.0f}}, {-0.5f});
  EXPECT_THAT(grower.Frontier(), ElementsAre(1));
  grower.Expand(1, {}, {});
  EXPECT_THAT(grower.Frontier(), IsEmpty());
  EXPECT_EQ(grower.tree().size(), 2);
}

TEST(TreeGrowerTest, KeepsTokensScoresAndDrawOrder) {
  TreeGrower grower(Parsed("2"), 7, 100);
  grower.Expand(0, {{4, 1.0f}, {9, 0.5f}, {5, 0.1f}}, {-3.0f, -0.5f, -0.1f});
  EXPECT_THAT(grower.tree().tokens, ElementsAre(7, 4, 9));
  EXPECT_THAT(grower.tree().scores, ElementsAre(0.0f, -3.0f, -0.5f));
}

TEST(TreeGrowerTest, BestFirstUsesItsBudgetInTheStepsItMay) {
  for (uint32_t salt = 0; salt < 50; ++salt) {
    for (const char* policy : {"best:16", "best:1", "best:63:4:6", "best:20:2:3", "best:255:8:8"}) {
      for (int max_nodes : {1, 5, 300}) {
        const GrowthPolicy parsed = Parsed(policy);
        const Grown grown = Grow(parsed, max_nodes, {salt});
        int64_t room = 0, level = 1;
        for (int depth = 0; depth < parsed.max_depth; ++depth) {
          room = std::min<int64_t>(room + (level *= parsed.max_children), 1000);
          level = std::min<int64_t>(level, 1000);
        }
        EXPECT_EQ(grown.tree.size() - 1, std::min<int64_t>({parsed.budget, max_nodes, room}))
            << policy;
        EXPECT_TRUE(Validate(grown.tree, kMaxDraftNodes, 1000).ok());
        const std::vector<int32_t> depths = Depths(grown.tree);
        EXPECT_LE(*std::max_element(depths.begin(), depths.end()), parsed.max_depth);
        EXPECT_LE(grown.steps, std::max(parsed.max_depth, grown.tree.size() - 1));
      }
    }
  }
}

TEST(TreeGrowerTest, BestFirstFollowsALikelyChainDown) {
  // The first child has nearly all the mass at every node: a chain results.
  TreeGrower grower(Parsed("best:6:3:6"), 7, 6);
  while (!grower.complete()) {
    for (int32_t node : grower.Frontier()) {
      grower.Expand(node, {{1, 3.0f}, {2, 2.0f}, {3, 1.0f}}, {-0.01f, -5.0f, -6.0f});
    }
  }
  EXPECT_THAT(grower.tree().parents, ElementsAre(-1, 0, 1, 2, 3, 4, 5));
}

TEST(TreeGrowerTest, BestFirstSpreadsWhereNothingIsLikely) {
  TreeGrower grower(Parsed("best:3:3:3"), 7, 3);
  while (!grower.complete()) {
    for (int32_t node : grower.Frontier()) {
      grower.Expand(node, {{1, 3.0f}, {2, 2.0f}, {3, 1.0f}}, {-1.1f, -1.1f, -1.1f});
    }
  }
  EXPECT_THAT(grower.tree().parents, ElementsAre(-1, 0, 0, 0));
  EXPECT_THAT(grower.tree().tokens, ElementsAre(7, 1, 2, 3));
}

TEST(TreeGrowerTest, BestFirstKeepsSiblingsInDrawOrder) {
  // The second drawn has the larger log-probability; it still comes second.
  TreeGrower grower(Parsed("best:2:2:1"), 7, 2);
  grower.Expand(0, {{1, 3.0f}, {2, 2.0f}}, {-4.0f, -0.5f});
  EXPECT_THAT(grower.tree().tokens, ElementsAre(7, 1, 2));
  EXPECT_THAT(grower.tree().scores, ElementsAre(0.0f, -4.0f, -0.5f));
}

TEST(TreeGrowerTest, AnEarlyStopFillsTheBudgetWithWhatIsKnown) {
  TreeGrower grower(Parsed("best:4:4:4"), 7, 4);
  grower.Expand(0, {{1, 3.0f}, {2, 2.0f}, {3, 1.0f}, {4, 0.0f}}, {-1, -2, -3, -4});
  EXPECT_EQ(grower.tree().size(), 2);
  EXPECT_THAT(std::move(grower).Take().tokens, ElementsAre(7, 1, 2, 3, 4));
}

TEST(TreeGrowerTest, NanLogprobsAreLast) {
  TreeGrower grower(Parsed("best:2:2:1"), 7, 2);
  grower.Expand(0, {{1, 3.0f}, {2, 2.0f}}, {std::nanf(""), std::nanf("")});
  EXPECT_THAT(grower.tree().tokens, ElementsAre(7, 1, 2));
}

TEST(TreeGrowerTest, LeavesOutNodesThatDoNotPayForTheirRow) {
  // Every first child has half of the mass, its siblings next to none.
  for (const auto& [cost_per_row, nodes] :
       {std::pair{0.0f, 8}, std::pair{0.3f, 1}, std::pair{0.2f, 2}, std::pair{0.6f, 0}}) {
    TreeGrower grower(Parsed("best:8:2:8"), 7, 8, cost_per_row);
    while (!grower.complete()) {
      for (int32_t node : grower.Frontier()) {
        grower.Expand(node, {{1, 3.0f}, {2, 2.0f}}, {std::log(0.5f), -9.0f});
      }
    }
    EXPECT_EQ(std::move(grower).Take().size(), nodes + 1) << cost_per_row;
  }
}

TEST(TreeGrowerTest, GainIsTheChanceOfWhatIsToBeExpanded) {
  TreeGrower grower(Parsed("2,1,1"), 7, 100);
  EXPECT_FLOAT_EQ(grower.Gain(), 1.0f);
  grower.Expand(0, {{1, 3.0f}, {2, 2.0f}}, {std::log(0.5f), std::log(0.2f)});
  EXPECT_FLOAT_EQ(grower.Gain(), 0.7f);
  grower.Stop();
  EXPECT_THAT(grower.Frontier(), IsEmpty());
  EXPECT_FLOAT_EQ(grower.Gain(), 0.0f);
  EXPECT_EQ(std::move(grower).Take().size(), 3);
}

TEST(GrowthRoundTest, WaitedForSequencesAreComparedWithTheirGain) {
  GrowthRound round;
  const auto pays = [&](float gain) { return round.Pays({.gain = gain, .spared = 0}, 1e-3); };
  round.Join(1, 100);
  EXPECT_TRUE(pays(0.11f));
  EXPECT_FALSE(pays(0.09f));
  round.Join(2, 100);
  EXPECT_FALSE(pays(0.11f)) << "the step waits for both";
  round.Leave(2, true);
  EXPECT_FALSE(pays(0.11f)) << "one that was sent still waits";
  round.Leave(1, true);
  round.Join(1, 100);
  round.Join(2, 0);
  EXPECT_TRUE(pays(0.11f)) << "a new round";
  round.Join(2, 100);
  round.Leave(2, false);
  EXPECT_TRUE(pays(0.11f)) << "one that is not wanted any more does not wait";
  round.Join(2, 100);
  round.Leave(2, true);
  for (int pass = 0; pass < 300; ++pass) pays(1);
  EXPECT_TRUE(pays(0.11f)) << "nor one that never asks again";
}

TEST(GrowthRoundTest, WhatIsMadeUpAheadMustGainMore) {
  TreeGrower grower(Parsed("1,1,1"), 7, 100);
  GrowthRound round;
  round.Join(1, 500);
  const auto pass = [&](bool goes_ahead) {
    GrowthRound::Pass pass;
    pass.Add(grower, goes_ahead);
    return pass;
  };
  // A first level is not made up: the target goes on from its root.
  EXPECT_FLOAT_EQ(pass(true).spared, 0);
  grower.Expand(0, {{1, 3.0f}}, {std::log(0.8f)});
  EXPECT_FLOAT_EQ(pass(true).gain, 0.8f);
  EXPECT_FLOAT_EQ(pass(true).spared, 0.8f);
  EXPECT_FLOAT_EQ(pass(false).spared, 0);
  // Of a pass that takes as long as half a token: .8 is more than .5, and less than .5 * 1.8.
  EXPECT_TRUE(round.Pays(pass(false), 1e-3));
  EXPECT_FALSE(round.Pays(pass(true), 1e-3));
  // It is needed again only if all trees are accepted that far.
  GrowthRound::Pass both = pass(true);
  both.Add(grower, true);
  EXPECT_FLOAT_EQ(both.gain, 1.6f);
  EXPECT_FLOAT_EQ(both.spared, 0.64f);
  both.Add(grower, false);
  EXPECT_FLOAT_EQ(both.spared, 0);
}

}  // namespace
}  // namespace specfabric::speculation
