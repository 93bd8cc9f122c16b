// What the goodput control is made of: the time of a step, the chance of a guess, the share of each
// sequence.

#include <cmath>
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/acceptance_estimate.h"
#include "scheduler/step_time.h"
#include "scheduler/tree_budget.h"

namespace specfabric::scheduler {
namespace {

using speculation::Coupling;
using speculation::SiblingDraw;
using speculation::TokenTree;
using testing::ElementsAre;
using testing::IsEmpty;

using Curve = std::function<double(int32_t rows, int64_t context)>;  // ns

// A GPU's: reading 20 ms of weights covers 333 rows of 60 us.
double Gpu(int32_t rows, int64_t context) {
  return 3e5 + std::max(2e7, 6e4 * rows) + 20.0 * context;
}
double Linear(int32_t rows, int64_t context) { return 1e6 + 2e5 * rows + 5.0 * context; }

StepTime Learned(const Curve& curve, const std::vector<int32_t>& rows, int steps, double noise) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, noise);
  StepTime time;
  for (int i = 0; i < steps; ++i) {
    const int32_t r = rows[random() % rows.size()];
    const int64_t context = random() % 20'000;
    time.Observe(r, context, static_cast<base::Nanos>(curve(r, context) * (1 + normal(random))));
  }
  return time;
}

TEST(StepTimeTest, LearnsFlatAndRisingParts) {
  std::vector<int32_t> rows;
  for (int32_t r = 1; r <= 1000; r = r * 5 / 4 + 1) rows.push_back(r);
  for (const Curve& curve : {Curve(Gpu), Curve(Linear)}) {
    const StepTime time = Learned(curve, rows, 2000, 0.03);
    for (int32_t r : {1, 5, 64, 200, 700, 1000}) {
      for (int64_t context : {0, 10'000}) {
        EXPECT_NEAR(time.Predict(r, context) / curve(r, context), 1, 0.12) << r << " " << context;
      }
    }
  }
}

TEST(StepTimeTest, GoesOnStraightWhereNoStepHasBeen) {
  const StepTime time = Learned(Linear, {4, 6, 8, 12, 16}, 500, 0.01);
  EXPECT_NEAR(time.Predict(32, 0) / Linear(32, 0), 1, 0.15);
  EXPECT_NEAR(time.Predict(1, 0) / Linear(1, 0), 1, 0.15);
}

TEST(StepTimeTest, NeverFallsInRowsAndForgets) {
  StepTime time = Learned(Gpu, {1, 2, 3, 300, 900}, 300, 0.3);
  for (int32_t r = 1; r < 2000; ++r) ASSERT_LE(time.Predict(r, 0), time.Predict(r + 1, 0)) << r;
  for (int i = 0; i < 3000; ++i) time.Observe(10, 0, 2 * base::kMillisecond);
  EXPECT_NEAR(time.Predict(10, 0), 2e6, 1e5);
}

TEST(StepTimeTest, AStepThatWasHeldUpTeachesNothing) {
  StepTime time = Learned(Linear, {10, 20, 30}, 200, 0.01);
  const base::Nanos before = time.Predict(20, 0);
  time.Observe(20, 0, 100 * before);
  EXPECT_EQ(time.Predict(20, 0), before);
}

TokenTree Chain(int nodes, float score) {
  TokenTree tree = TokenTree::Root(1);
  for (int i = 0; i < nodes; ++i) tree.Add(i, 2 + i, score);
  return tree;
}

TEST(AcceptanceEstimateTest, BelievesTheDraftUntilItKnowsBetter) {
  AcceptanceEstimate estimate;
  const speculation::Draft draft = {.tree = Chain(2, std::log(0.9f))};
  EXPECT_NEAR(estimate.Chances(Coupling::kCoupled, draft)[1], 0.9, 0.01);
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> path;
    while (path.size() < 2 && random() % 10 < 4) path.push_back(static_cast<int>(path.size()) + 1);
    estimate.Observe(Coupling::kCoupled, draft.tree, draft.draw, path);
  }
  const auto chances = estimate.Chances(Coupling::kCoupled, draft);
  EXPECT_NEAR(chances[1], 0.4, 0.03);
  EXPECT_NEAR(chances[2], 0.4, 0.03) << "the second is only tried where the first was right";
  // What another coupling does with the same scores is another matter.
  EXPECT_NEAR(estimate.Chances(Coupling::kTypical, draft)[1], 0.9, 0.01);
}

TEST(AcceptanceEstimateTest, WeighedGuessesAreJudgedByTheirPlaceAlone) {
  AcceptanceEstimate estimate;
  speculation::Draft draft = {.tree = Chain(2, -0.1f), .draw = SiblingDraw::kWithoutReplacement};
  for (int i = 0; i < 500; ++i) {
    estimate.Observe(Coupling::kRejection, draft.tree, draft.draw, {1});
  }
  const auto chances = estimate.Chances(Coupling::kRejection, draft);
  EXPECT_GT(chances[1], 0.95);
  EXPECT_LT(chances[2], 0.05);
  for (float& score : draft.tree.scores) score = -9;
  EXPECT_EQ(estimate.Chances(Coupling::kRejection, draft), chances);
}

// --- The share of each ---------------------------------------------------------------------------

struct Offered {
  TokenTree tree;
  std::vector<float> chances;
  TreeOffer offer(bool any = true, float value = 1) const { return {&tree, chances, any, value}; }
};

Offered RandomOffer(std::mt19937* random, int nodes) {
  Offered offered{TokenTree::Root(0), {1.0f}};
  for (int i = 0; i < nodes; ++i) {
    offered.tree.Add((*random)() % offered.tree.size(), 1, 0);
    offered.chances.push_back(((*random)() % 1000) / 1000.0f);
  }
  return offered;
}

double Worth(const Offered& offered, const std::vector<int32_t>& nodes) {
  double worth = 0;
  for (int32_t node : nodes) {
    double chance = 1;
    for (int32_t a = node; a > 0; a = offered.tree.parents[a]) chance *= offered.chances[a];
    worth += chance;
  }
  return worth;
}

bool Closed(const TokenTree& tree, const std::vector<int32_t>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(), [&](int32_t node) {
    const int32_t parent = tree.parents[node];
    return parent == 0 || std::find(nodes.begin(), nodes.end(), parent) != nodes.end();
  });
}

TEST(ShareRowsTest, IsTheBestOfAllSubtrees) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 60; ++trial) {
    const double row = 1e5 * (1 + random() % 30);
    const StepTime time = Learned([&](int32_t rows, int64_t) { return std::max(1e6, row * rows); },
                                  {1, 2, 3, 4, 6, 8, 12, 16, 20, 32}, 600, 0);
    const Offered a = RandomOffer(&random, 6), b = RandomOffer(&random, 5);
    const TreeBudget budget = ShareRows({a.offer(), b.offer()}, 2, 0, 64, time);
    double best = 0;
    for (int mask = 0; mask < 1 << 11; ++mask) {
      std::vector<int32_t> of_a, of_b;
      for (int i = 0; i < 6; ++i) {
        if (mask >> i & 1) of_a.push_back(i + 1);
      }
      for (int i = 0; i < 5; ++i) {
        if (mask >> (6 + i) & 1) of_b.push_back(i + 1);
      }
      if (!Closed(a.tree, of_a) || !Closed(b.tree, of_b)) continue;
      const auto count = static_cast<int32_t>(of_a.size() + of_b.size());
      best = std::max(best, (2 + Worth(a, of_a) + Worth(b, of_b)) / time.Predict(2 + count, 0));
    }
    ASSERT_TRUE(Closed(a.tree, budget.nodes[0]) && Closed(b.tree, budget.nodes[1]));
    const double worth = Worth(a, budget.nodes[0]) + Worth(b, budget.nodes[1]);
    EXPECT_NEAR(budget.expected, worth, 1e-6);
    const auto rows = static_cast<int32_t>(2 + budget.nodes[0].size() + budget.nodes[1].size());
    EXPECT_NEAR((2 + worth) / time.Predict(rows, 0) / best, 1, 1e-6);
  }
}

TEST(ShareRowsTest, NoneWhereEveryRowCostsItsTime) {
  const StepTime time =
      Learned([](int32_t rows, int64_t) { return 1e6 * rows; }, {1, 2, 4, 8, 16, 32}, 600, 0);
  const Offered chain{Chain(3, 0), {1, 0.9f, 0.9f, 0.9f}};
  EXPECT_THAT(ShareRows({chain.offer()}, 1, 0, 64, time).nodes[0], IsEmpty());
}

TEST(ShareRowsTest, AllWhereRowsAreFree) {
  const StepTime time = Learned([](int32_t, int64_t) { return 1e6; }, {1, 8, 64}, 600, 0);
  const Offered chain{Chain(3, 0), {1, 0.01f, 0.01f, 0.01f}};
  EXPECT_THAT(ShareRows({chain.offer()}, 1, 0, 64, time).nodes[0], ElementsAre(1, 2, 3));
  EXPECT_THAT(ShareRows({chain.offer()}, 1, 0, 3, time).nodes[0], ElementsAre(1, 2)) << "the limit";
}

TEST(ShareRowsTest, WeighedTreesAreCutInDrawOrder) {
  const StepTime time = Learned([](int32_t, int64_t) { return 1e6; }, {1, 8, 64}, 600, 0);
  TokenTree tree = TokenTree::Root(0);
  tree.Add(0, 1, 0);
  tree.Add(0, 2, 0);
  tree.Add(1, 3, 0);
  const Offered offered{tree, {1, 0.1f, 0.8f, 0.9f}};
  EXPECT_THAT(ShareRows({offered.offer(false)}, 1, 0, 3, time).nodes[0], ElementsAre(1, 2));
  EXPECT_THAT(ShareRows({offered.offer(true)}, 1, 0, 2, time).nodes[0], ElementsAre(2));
}

TEST(ShareRowsTest, ValueShiftsTheShares) {
  const StepTime time = Learned([](int32_t, int64_t) { return 1e6; }, {1, 8, 64}, 600, 0);
  const Offered a{Chain(3, 0), {1, 0.5f, 0.5f, 0.5f}};
  const auto even = ShareRows({a.offer(), a.offer()}, 2, 0, 6, time);
  EXPECT_EQ(even.nodes[0].size(), 2u);
  const auto shifted = ShareRows({a.offer(), a.offer(true, 10)}, 2, 0, 6, time);
  EXPECT_EQ(shifted.nodes[1].size(), 3u);
}

}  // namespace
}  // namespace specfabric::scheduler
