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
GuessCache SentChain(int length) {
  GuessCache guesses;
  guesses.Plant(0);
  int node = 0;
  for (int depth = 0; depth < length; ++depth) {
    guesses.SetCandidates(node, Followers(10 * depth));
    node = guesses.FindOrAdd(node, 10 * depth, static_cast<float>(std::log(0.5)));
    guesses.MarkSent(node);
    if (depth + 1 < length) guesses.TakeSlot(node);
  }
  return guesses;
}

// Runs what the plan says, and returns how many next roots it took by accepted guesses.
std::vector<int> RunAll(AheadPlan* plan, GuessCache* guesses, int levels) {
  std::vector<int> roots(levels + 1, 0);
  while (plan->any()) {
    const AheadNode node = plan->Take();
    const int guess = guesses->FindOrAdd(node.parent, node.token, node.logprob);
    EXPECT_FALSE(guesses->run(guess)) << "run twice";
    EXPECT_TRUE(guesses->run(node.parent)) << "before its parent";
    if (guesses->sent(node.parent) && !guesses->sent(guess)) {
      int depth = 0;
      for (int a = node.parent; a > 0; a = guesses->tree().parents[a]) ++depth;
      ++roots[depth];
    }
    guesses->TakeSlot(guess);
    guesses->SetCandidates(guess, Followers(100));
    plan->OnRun(*guesses, guess);
  }
  return roots;
}

TEST(AheadPlanTest, TheLikeliestIsNext) {
  GuessCache guesses = SentChain(2);
  AheadPlan plan;
  plan.Start({.nodes = 4}, guesses, 0.5);
  // Chances: the sent but unrun leaf 10 has .25, as has the root's second follower 1.
  float last = 1;
  while (plan.any()) {
    EXPECT_LE(plan.best(), last);
    last = plan.best();
    const AheadNode node = plan.Take();
    EXPECT_FLOAT_EQ(node.key, guesses.path(node.parent) + node.logprob);
  }
}

TEST(AheadPlanTest, KeepsToItsNodesAndLeavesOutWhatIsUnlikely) {
  GuessCache guesses = SentChain(3);
  AheadPlan plan;
  plan.Start({.nodes = 5}, guesses, 0.5);
  int taken = 0;
  for (; plan.any(); ++taken) plan.Take();
  EXPECT_EQ(taken, 5);
  plan.Start({.nodes = 100, .least_chance = 0.2f}, guesses, 0.5);
  for (taken = 0; plan.any(); ++taken) EXPECT_GE(plan.Take().key, std::log(0.2f));
  EXPECT_EQ(taken, 1) << "of all next roots only the second follower of the root";
  plan.Start({.policy = AheadPolicy::kOff}, guesses, 0.5);
  EXPECT_FALSE(plan.any());
}

TEST(AheadPlanTest, UniformGivesEveryNumberOfAcceptedGuessesAsManyRoots) {
  GuessCache guesses = SentChain(3);
  AheadPlan plan;
  plan.Start({.policy = AheadPolicy::kUniform, .nodes = 16}, guesses, 0.5);
  EXPECT_THAT(RunAll(&plan, &guesses, 3), ElementsAre(2, 2, 2, 2));
}

TEST(AheadPlanTest, GeometricPrefersTheOutcomesThatAreLikelier) {
  GuessCache guesses = SentChain(3);
  AheadPlan plan;
  // Nearly all is accepted: the roots after the whole chain weigh most.
  plan.Start({.policy = AheadPolicy::kGeometric, .nodes = 14}, guesses, 0.95);
  EXPECT_THAT(RunAll(&plan, &guesses, 3), ElementsAre(1, 1, 1, 3));
  guesses = SentChain(3);
  plan.Start({.policy = AheadPolicy::kGeometric, .nodes = 10}, guesses, 0.1);
  EXPECT_THAT(RunAll(&plan, &guesses, 3), ElementsAre(2, 1, 1, 1));
}

TEST(AheadPlanTest, BelowTheRootsItGrowsOn) {
  GuessCache guesses = SentChain(2);
  AheadPlan plan;
  plan.Start({.nodes = 30, .least_chance = 1e-6f}, guesses, 0.5);
  const int before = guesses.size();
  RunAll(&plan, &guesses, 2);
  EXPECT_GE(guesses.size(), before + 29);
  int deepest = 0;
  for (int node = 0; node < guesses.size(); ++node) {
    int depth = 0;
    for (int a = node; a > 0; a = guesses.tree().parents[a]) ++depth;
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
