// Which draft tokens pay.

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/policy/tree_budget.h"
#include "tests/scheduler/chain.h"
#include "tests/scheduler/learned_step_time.h"

namespace specfabric::scheduler {
namespace {

using speculation::TokenTree;
using testing::ElementsAre;
using testing::FloatNear;
using testing::IsEmpty;
using testing::Pointwise;

TEST(GainBucketTest, AscendsInQuarterOctaves) {
  EXPECT_EQ(GainBucket(0), 0);
  EXPECT_EQ(GainBucket(-1), 0);
  EXPECT_EQ(GainBucket(NAN), 0);
  EXPECT_EQ(GainBucket(1e-9f), 0);
  EXPECT_EQ(GainBucket(1e9f), kGainBuckets - 1);
  EXPECT_EQ(GainBucket(1.0f) - GainBucket(0.5f), 4);
  for (float expected_gain = 1e-4f; expected_gain < 8; expected_gain *= 1.01f) {
    ASSERT_LE(GainBucket(expected_gain), GainBucket(expected_gain * 1.01f));
  }
}

struct Tree {
  TokenTree tree;
  std::vector<float> expected_gain;  // [nodes - 1]
};

// A child's expected gain is a share of its parent's.
Tree RandomTree(std::mt19937* random, int nodes) {
  Tree made{TokenTree::Root(0), {}};
  for (int i = 0; i < nodes; ++i) {
    const int parent = static_cast<int>((*random)() % made.tree.size());
    made.tree.Add(parent, 1, 0);
    made.expected_gain.push_back((parent > 0 ? made.expected_gain[parent - 1] : 1.0f) *
                                 ((*random)() % 1000) / 1000.0f);
  }
  return made;
}

GainHistogram GainsOf(const std::vector<Tree>& trees, float value = 1) {
  GainHistogram gains;
  for (const Tree& tree : trees) {
    for (float expected_gain : tree.expected_gain) gains.Add(value * expected_gain);
  }
  return gains;
}

std::vector<std::vector<int32_t>> Taken(const RowAllocation& allocation,
                                        const std::vector<Tree>& trees) {
  std::vector<std::vector<int32_t>> taken(trees.size());
  int32_t left = allocation.partial;
  for (size_t t = 0; t < trees.size(); ++t)
    SelectNodes(allocation, trees[t].expected_gain, 1, &left, &taken[t]);
  return taken;
}

// The reference: tries every number of draft tokens, best first.
double BestRate(const std::vector<Tree>& trees, const StepBase& base, const StepTime& time) {
  std::vector<float> all;
  for (const Tree& tree : trees)
    all.insert(all.end(), tree.expected_gain.begin(), tree.expected_gain.end());
  std::sort(all.rbegin(), all.rend());
  double tokens = base.tokens, best = 0;
  for (size_t n = 0; n <= all.size(); ++n) {
    const auto rows = static_cast<int32_t>(base.rows) + static_cast<int32_t>(n);
    if (rows > base.max_rows) break;
    best = std::max(best, tokens / static_cast<double>(base.delay + time.Predict(rows, 0)));
    if (n < all.size()) tokens += all[n];
  }
  return best;
}

TEST(AllocateRowsTest, IsNearlyTheBestNumberOfDraftTokensAndTakesWholeSubtrees) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 200; ++trial) {
    const double row = 1e5 * (1 + random() % 30);
    const StepTime time = Learned([&](int32_t rows, int64_t) { return std::max(1e6, row * rows); },
                                  {1, 2, 3, 4, 6, 8, 12, 16, 20, 32}, 300, 0);
    std::vector<Tree> trees;
    for (int t = 0; t < 3; ++t) trees.push_back(RandomTree(&random, 2 + random() % 8));
    const StepBase base = {.tokens = 3,
                           .rows = 3,
                           .delay = static_cast<base::Nanos>(random() % 1'000'000),
                           .max_rows = 3 + static_cast<int32_t>(random() % 20)};
    const RowAllocation allocation = AllocateRows(GainsOf(trees), base, time);
    const auto taken = Taken(allocation, trees);
    double tokens = base.tokens;
    int32_t draft_tokens = 0;
    for (size_t t = 0; t < trees.size(); ++t) {
      for (int32_t node : taken[t]) {
        const int32_t parent = trees[t].tree.parents[node];
        ASSERT_TRUE(parent == 0 || std::count(taken[t].begin(), taken[t].end(), parent) == 1);
        tokens += trees[t].expected_gain[node - 1];
        ++draft_tokens;
      }
    }
    ASSERT_LE(3 + draft_tokens, base.max_rows);
    ASSERT_EQ(draft_tokens, allocation.draft_tokens);
    const double rate =
        tokens / static_cast<double>(base.delay + time.Predict(3 + draft_tokens, 0));
    EXPECT_GE(rate, 0.97 * BestRate(trees, base, time));
  }
}

TEST(AllocateRowsTest, NoneWhereEveryRowCostsTheSame) {
  const StepTime time =
      Learned([](int32_t rows, int64_t) { return 1e6 * rows; }, {1, 2, 4, 8, 16, 32}, 600, 0);
  const std::vector<Tree> trees = {{Chain(3, 0), {0.9f, 0.81f, 0.73f}}};
  const StepBase base = {.tokens = 1, .rows = 1, .max_rows = 64};
  EXPECT_EQ(AllocateRows(GainsOf(trees), base, time).draft_tokens, 0);
  EXPECT_THAT(Taken(AllocateRows(GainsOf(trees), base, time), trees)[0], IsEmpty());
  EXPECT_EQ(AllocateRows(GainsOf(trees), base, time, true).draft_tokens, 3) << "if it must";
}

TEST(AllocateRowsTest, AllWhereRowsAreFreeUpToTheLimit) {
  const StepTime time = Learned([](int32_t, int64_t) { return 1e6; }, {1, 8, 64}, 600, 0);
  const std::vector<Tree> trees = {{Chain(3, 0), {0.01f, 0.01f, 0.01f}},
                                   {Chain(3, 0), {0.01f, 0.01f, 0.01f}}};
  StepBase base = {.tokens = 2, .rows = 2, .max_rows = 64};
  EXPECT_THAT(Taken(AllocateRows(GainsOf(trees), base, time), trees),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(1, 2, 3)));
  base.max_rows = 6;
  EXPECT_THAT(Taken(AllocateRows(GainsOf(trees), base, time), trees),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(1)))
      << "of equals the first";
  base.max_rows = 1;
  EXPECT_EQ(AllocateRows(GainsOf(trees), base, time).draft_tokens, 0);
}

// Many rows that are expected to yield little more are as likely to yield less; where they take no
// time there is nothing to lose.
TEST(AllocateRowsTest, TakesNoManyRowsForALittle) {
  const std::vector<int32_t> sizes = {1, 8, 16, 32, 64, 128};
  const StepTime rising =
      Learned([](int32_t rows, int64_t) { return 20e6 + 9.1e6 * rows; }, sizes, 600, 0);
  const StepTime flat = Learned([](int32_t, int64_t) { return 20e6; }, sizes, 600, 0);
  const StepBase step = {.tokens = 16, .rows = 16, .max_rows = 128};
  GainHistogram gains;
  for (int i = 0; i < 64; ++i) gains.Add(0.9f);
  // 1.8 % more tokens a second in a step of 4.5 times the time.
  EXPECT_EQ(AllocateRows(gains, step, rising).draft_tokens, 0);
  EXPECT_EQ(AllocateRows(gains, step, flat).draft_tokens, 64);
  GainHistogram few;
  for (int i = 0; i < 2; ++i) few.Add(0.98f);
  EXPECT_EQ(AllocateRows(few, step, rising).draft_tokens, 2);
}

TEST(AllocateRowsTest, HigherValueGetsMoreRows) {
  const StepTime time = Learned([](int32_t, int64_t) { return 1e6; }, {1, 8, 64}, 600, 0);
  const Tree tree = {Chain(3, 0), {0.5f, 0.25f, 0.125f}};
  GainHistogram gains = GainsOf({tree});
  gains.Add(GainsOf({tree}, 8), 1);
  const RowAllocation allocation =
      AllocateRows(gains, {.tokens = 2, .rows = 2, .max_rows = 5}, time);
  int32_t left = allocation.partial;
  std::vector<int32_t> nodes;
  SelectNodes(allocation, tree.expected_gain, 8, &left, &nodes);
  EXPECT_THAT(nodes, ElementsAre(1, 2, 3));
  SelectNodes(allocation, tree.expected_gain, 1, &left, &nodes);
  EXPECT_THAT(nodes, IsEmpty());
}

TEST(MakeNonIncreasingTest, NeverRisesAndKeepsTheSum) {
  std::vector<float> expected_gain = {0.6f, 0.1f, 0.4f, 0.4f, 0.05f};
  MakeNonIncreasing(absl::MakeSpan(expected_gain));
  EXPECT_THAT(expected_gain, Pointwise(FloatNear(1e-5f), {0.6f, 0.3f, 0.3f, 0.3f, 0.05f}));
}

}  // namespace
}  // namespace specfabric::scheduler
