#include "draft/ahead_plan.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::draft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Three likely followers of any node, half as likely each time.
std::vector<Candidate> Followers(base::TokenId first) {
  std::vector<Candidate> candidates;
  for (int i = 0; i < 3; ++i) {
    const auto logprob = static_cast<float>(std::log(0.5) * (i + 1));
    candidates.push_back({{first + i, logprob}, logprob});
  }
  return candidates;
}

// A chain of the likeliest tokens was sent, each of which was run but the last.
SpeculationCache SentChain(int length) {
  SpeculationCache speculation_cache;
  speculation_cache.Reset(0);
  int node = 0;
  for (int depth = 0; depth < length; ++depth) {
    speculation_cache.SetCandidates(node, Followers(10 * depth));
    node = speculation_cache.FindOrAdd(node, 10 * depth, static_cast<float>(std::log(0.5)));
    speculation_cache.MarkSent(node);
    if (depth + 1 < length) speculation_cache.TakeSlot(node);
  }
  return speculation_cache;
}

// Runs what the plan says, and returns how many next roots it took by accepted draft tokens.
std::vector<int> RunAll(AheadPlan* plan, SpeculationCache* speculation_cache, int levels) {
  std::vector<int> roots(levels + 1, 0);
  while (plan->any()) {
    const AheadNode node = plan->Take();
    const int cache_node = speculation_cache->FindOrAdd(node.parent, node.token, node.logprob);
    EXPECT_FALSE(speculation_cache->run(cache_node)) << "run twice";
    EXPECT_TRUE(speculation_cache->run(node.parent)) << "before its parent";
    if (speculation_cache->sent(node.parent) && !speculation_cache->sent(cache_node)) {
      int depth = 0;
      for (int a = node.parent; a > 0; a = speculation_cache->tree().parents[a]) ++depth;
      ++roots[depth];
    }
    speculation_cache->TakeSlot(cache_node);
    speculation_cache->SetCandidates(cache_node, Followers(100));
    plan->OnRun(*speculation_cache, cache_node);
  }
  return roots;
}

TEST(AheadPlanTest, TheLikeliestIsNext) {
  SpeculationCache speculation_cache = SentChain(2);
  AheadPlan plan;
  plan.Start({.nodes = 4}, speculation_cache, 0.5);
  // Chances: the sent but unrun leaf 10 has .25, as has the root's second follower 1.
  float last = 1;
  while (plan.any()) {
    EXPECT_LE(plan.best(), last);
    last = plan.best();
    const AheadNode node = plan.Take();
    EXPECT_FLOAT_EQ(node.key, speculation_cache.path(node.parent) + node.logprob);
  }
}

TEST(AheadPlanTest, KeepsToItsNodesAndLeavesOutWhatIsUnlikely) {
  SpeculationCache speculation_cache = SentChain(3);
  AheadPlan plan;
  plan.Start({.nodes = 5}, speculation_cache, 0.5);
  int taken = 0;
  for (; plan.any(); ++taken) plan.Take();
  EXPECT_EQ(taken, 5);
  plan.Start({.nodes = 100, .least_chance = 0.2f}, speculation_cache, 0.5);
  for (taken = 0; plan.any(); ++taken) EXPECT_GE(plan.Take().key, std::log(0.2f));
  EXPECT_EQ(taken, 1) << "of all next roots only the second follower of the root";
  plan.Start({.policy = AheadPolicy::kOff}, speculation_cache, 0.5);
  EXPECT_FALSE(plan.any());
}

TEST(AheadPlanTest, UniformGivesEveryNumberOfAcceptedTokensEquallyManyRoots) {
  SpeculationCache speculation_cache = SentChain(3);
  AheadPlan plan;
  plan.Start({.policy = AheadPolicy::kUniform, .nodes = 16}, speculation_cache, 0.5);
  EXPECT_THAT(RunAll(&plan, &speculation_cache, 3), ElementsAre(2, 2, 2, 2));
}

TEST(AheadPlanTest, GeometricPrefersTheOutcomesThatAreLikelier) {
  SpeculationCache speculation_cache = SentChain(3);
  AheadPlan plan;
  // Nearly all is accepted: the roots after the whole chain are the likeliest.
  plan.Start({.policy = AheadPolicy::kGeometric, .nodes = 14}, speculation_cache, 0.95);
  EXPECT_THAT(RunAll(&plan, &speculation_cache, 3), ElementsAre(1, 1, 1, 3));
  speculation_cache = SentChain(3);
  plan.Start({.policy = AheadPolicy::kGeometric, .nodes = 10}, speculation_cache, 0.1);
  EXPECT_THAT(RunAll(&plan, &speculation_cache, 3), ElementsAre(2, 1, 1, 1));
}

TEST(AheadPlanTest, BelowTheRootsItGrowsOn) {
  SpeculationCache speculation_cache = SentChain(2);
  AheadPlan plan;
  plan.Start({.nodes = 30, .least_chance = 1e-6f}, speculation_cache, 0.5);
  const int before = speculation_cache.size();
  RunAll(&plan, &speculation_cache, 2);
  EXPECT_GE(speculation_cache.size(), before + 29);
  int deepest = 0;
  for (int node = 0; node < speculation_cache.size(); ++node) {
    int depth = 0;
    for (int a = node; a > 0; a = speculation_cache.tree().parents[a]) ++depth;
    deepest = std::max(deepest, depth);
  }
  EXPECT_GT(deepest, 3);
}

TEST(AheadPolicyTest, SaysWhatIsAllowed) {
  EXPECT_EQ(*ParseAheadPolicy("geometric"), AheadPolicy::kGeometric);
  EXPECT_EQ(*ParseAheadPolicy("off"), AheadPolicy::kOff);
  const auto wrong = ParseAheadPolicy("fast");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("\"fast\""));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("likeliest"));
}

}  // namespace
}  // namespace specfabric::draft
