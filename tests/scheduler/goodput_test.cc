// The parts of goodput control: chance of acceptance, reply time, allocation of rows, order.

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/policy/acceptance_estimate.h"
#include "scheduler/policy/goodput.h"
#include "scheduler/policy/reply_time.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/policy/tree_budget.h"
#include "tests/scheduler/learned_step_time.h"

namespace specfabric::scheduler {
namespace {

using speculation::SiblingDraw;
using speculation::TokenTree;
using speculation::VerificationMethod;
using testing::ElementsAre;
using testing::FloatNear;
using testing::IsEmpty;
using testing::Pointwise;

TokenTree Chain(int nodes, float score) {
  TokenTree tree = TokenTree::Root(1);
  for (int i = 0; i < nodes; ++i) tree.Add(i, 2 + i, score);
  return tree;
}

std::vector<float> PathChances(const AcceptanceEstimate& estimate, VerificationMethod verification,
                               const speculation::Draft& draft) {
  std::vector<float> chances;
  estimate.PathChances(verification, draft, &chances);
  return chances;
}

TEST(AcceptanceEstimateTest, StartsFromTheDraftersScoresAndDecaysBackToThem) {
  AcceptanceEstimate estimate;
  const speculation::Draft draft = {.tree = Chain(2, std::log(0.9f))};
  EXPECT_THAT(PathChances(estimate, VerificationMethod::kCoupled, draft),
              Pointwise(FloatNear(0.01), {0.9f, 0.81f}));
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> path;
    while (path.size() < 2 && random() % 10 < 4) path.push_back(static_cast<int>(path.size()) + 1);
    estimate.Observe(VerificationMethod::kCoupled, draft, path);
  }
  // The second is only tried if the first was accepted.
  EXPECT_THAT(PathChances(estimate, VerificationMethod::kCoupled, draft),
              Pointwise(FloatNear(0.05), {0.4f, 0.16f}));
  // Other verification methods are estimated apart.
  EXPECT_NEAR(PathChances(estimate, VerificationMethod::kTypical, draft)[0], 0.9, 0.01);
  for (int i = 0; i < 500; ++i) estimate.Decay(VerificationMethod::kCoupled, 1);
  EXPECT_NEAR(PathChances(estimate, VerificationMethod::kCoupled, draft)[0], 0.9, 0.01);
}

TEST(AcceptanceEstimateTest, DrawnTokensAreEstimatedByPositionAlone) {
  AcceptanceEstimate estimate;
  speculation::Draft draft = {.tree = Chain(2, -0.1f), .draw = SiblingDraw::kWithoutReplacement};
  for (int i = 0; i < 500; ++i) {
    estimate.Observe(VerificationMethod::kRejection, draft, {1});
  }
  const auto chances = PathChances(estimate, VerificationMethod::kRejection, draft);
  EXPECT_GT(chances[0], 0.95);
  EXPECT_LT(chances[1], 0.05);
  for (float& score : draft.tree.scores) score = -9;
  EXPECT_EQ(PathChances(estimate, VerificationMethod::kRejection, draft), chances);
}

TEST(ReplyTimeTest, SeparatesFixedTimeLevelsAndLoads) {
  ReplyTime time;
  EXPECT_EQ(time.Expect(1, 4), 0);
  for (int i = 0; i < 300; ++i) {
    const int depth = 1 + i % 6;
    time.Observe(1, depth, 3 * base::kMillisecond + depth * base::kMillisecond);
    time.Observe(64, depth, 10 * depth * base::kMillisecond);
  }
  EXPECT_NEAR(time.Expect(1, 10), 13e6, 1e6);
  EXPECT_NEAR(time.Expect(64, 10), 100e6, 1e6);
  EXPECT_EQ(time.Expect(80, 2), time.Expect(64, 2)) << "the nearest that is known";
  EXPECT_LT(time.Deviation(1), 500 * base::kMicrosecond);
}

TEST(ReplyTimeTest, IsKnownOnceEnoughRepliesOfTheLoadHaveCome) {
  ReplyTime time;
  EXPECT_FALSE(time.known(1));
  for (int i = 0; i < 8; ++i) time.Observe(1, 1, base::kMillisecond);
  EXPECT_FALSE(time.known(1)) << "they may all have been ready";
  for (int i = 0; i < 12; ++i) time.Observe(1, 1, base::kMillisecond);
  EXPECT_TRUE(time.known(1));
  EXPECT_FALSE(time.known(64));
}

TEST(ReplyTimeTest, WithOneDepthAllTimeIsTheLevels) {
  ReplyTime time;
  for (int i = 0; i < 100; ++i) time.Observe(1, 4, 8 * base::kMillisecond);
  EXPECT_NEAR(time.Expect(1, 2), 4e6, 0.5e6);
  time.ObserveAtLeast(1, 4, 2 * base::kMillisecond);
  EXPECT_NEAR(time.Expect(1, 4), 8e6, 0.1e6) << "which was known";
}

// --- Allocation of rows --------------------------------------------------------------------------

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

// --- Goodput control -----------------------------------------------------------------------------

// A group of four sequences where rows are free.
struct Group {
  VerificationMethod verification = VerificationMethod::kCoupled;
  GoodputControl control = {};
  StepBase step = {.tokens = 4, .rows = 4, .context = 0, .delay = 0, .max_rows = 64};
  DraftOrder Round(const speculation::Draft& draft, base::Nanos latency) {
    for (int i = 0; i < 4; ++i) control.OnStep(4 + 4 * i, 0, 10 * base::kMillisecond);
    const DraftOrder order = Order();
    std::vector<float> expected_gain;
    for (int i = 0; i < 4; ++i) {
      control.OnReply(verification, order, draft.tree, latency);
      control.Evaluate(verification, draft, order, 16, &expected_gain);
    }
    return order;
  }
  DraftOrder Order() { return control.Order(verification, 4, step, 16); }
};

TEST(GoodputControlTest, AsksForTheLargestTreeAtFirst) {
  GoodputControl control;
  const DraftOrder order =
      control.Order(VerificationMethod::kCoupled, 4, {.tokens = 4, .rows = 4}, 16);
  EXPECT_TRUE(order.ask);
  EXPECT_EQ(order.max_nodes, 16);
  EXPECT_GT(order.gain, 0);
  EXPECT_EQ(control.ReplyTimeout(VerificationMethod::kCoupled, order), base::kForever);
}

// Where growing a tree as far as it pays would change the output distribution, the number of levels
// follows from past trees.
TEST(GoodputControlTest, FasterRepliesGiveDeeperTrees) {
  const speculation::Draft draft = {.tree = Chain(6, std::log(0.7f)),
                                    .draw = SiblingDraw::kWithoutReplacement};
  Group quick{VerificationMethod::kRejection}, slow{VerificationMethod::kRejection},
      useless{VerificationMethod::kRejection};
  for (int i = 0; i < 40; ++i) {
    quick.Round(draft, 60 * base::kMicrosecond);
    slow.Round(draft, 18 * base::kMillisecond);
    useless.Round(draft, 600 * base::kMillisecond);
  }
  EXPECT_EQ(quick.Order().max_depth, 6);
  EXPECT_TRUE(slow.Order().ask);
  EXPECT_LT(slow.Order().max_depth, 6);
  EXPECT_GT(slow.Order().gain, 0.5);
  int asked = 0;
  for (int i = 0; i < 200; ++i) asked += useless.Order().probers > 0;
  EXPECT_FALSE(useless.Order().ask);
  EXPECT_LT(asked, 12);
  EXPECT_GT(asked, 0);
}

// Sixteen sequences where every row costs the same, or further rows are free: whether all ask in a
// probe, which only serves to measure the time of such replies.
TEST(GoodputControlTest, AllProbeOnlyWhereFastRepliesWouldPay) {
  const speculation::Draft draft = {.tree = Chain(1, std::log(0.5f))};
  const StepBase step = {.tokens = 16, .rows = 16, .max_rows = 256};
  const auto all_probes = [&](double row_cost) {
    GoodputControl control;
    std::vector<float> expected_gain;
    int probed = 0;  // rounds in a row
    const auto round = [&] {
      for (const int32_t rows : {16, 20, 24, 32}) {
        const double time = 16e6 + row_cost * (rows - 16);
        control.OnStep(rows, 0, static_cast<base::Nanos>(time));
      }
      const DraftOrder order = control.Order(VerificationMethod::kCoupled, 16, step, 16);
      for (int i = 0; i < (order.ask ? 16 : order.probers); ++i) {
        control.OnReply(VerificationMethod::kCoupled, order, draft.tree, 600 * base::kMillisecond);
        control.Evaluate(VerificationMethod::kCoupled, draft, order, 16, &expected_gain);
      }
      return order;
    };
    for (int i = 0; i < 40; ++i) round();
    int few = 0, all = 0, before = 0;
    for (int i = 0; i < 1000; ++i) {
      const DraftOrder order = round();
      EXPECT_FALSE(order.ask);
      // Twice in a row: in the first drafters may have to catch up.
      EXPECT_TRUE(order.probers == 0 || before == 0 || order.probers == before);
      EXPECT_TRUE(order.probers > 0 || before == 0 || probed == 2) << probed;
      probed = order.probers > 0 ? probed + 1 : 0;
      before = order.probers;
      few += order.probers > 0 && order.probers < 16;
      all += order.probers == 16;
    }
    EXPECT_GT(few, 0);
    return all;
  };
  EXPECT_EQ(all_probes(/*row_cost=*/1e6), 0);
  EXPECT_GT(all_probes(/*row_cost=*/0), 0);
}

// Trees of all levels do not show how long one level takes (oracle_test has a point that needs it).
TEST(GoodputControlTest, HalfOfAProbeByAllAsksForOneLevel) {
  const GoodputControl control;
  const auto levels = [&](const DraftOrder& order) {
    std::vector<int32_t> levels;
    for (int32_t left = order.probers; left-- > 0;) {
      levels.push_back(control.Probe(VerificationMethod::kCoupled, order, 16, left).max_depth);
    }
    return levels;
  };
  EXPECT_THAT(levels({.probers = 4, .mixed = true}), ElementsAre(1, 16, 1, 16));
  EXPECT_THAT(levels({.probers = 2}), ElementsAre(16, 16));
}

TEST(GoodputControlTest, CostPerSecondFollowsTheRate) {
  const speculation::Draft draft = {.tree = Chain(6, std::log(0.7f))};
  Group quick, slow, useless;
  for (int i = 0; i < 40; ++i) {
    quick.Round(draft, 60 * base::kMicrosecond);
    slow.Round(draft, 18 * base::kMillisecond);
    useless.Round(draft, 600 * base::kMillisecond);
  }
  // Four sequences, ten milliseconds a step: 100 tokens a second each without drafts, and with them
  // as many more as are accepted, as long as their replies take no time.
  EXPECT_EQ(quick.Order().max_depth, slow.Order().max_depth);
  EXPECT_NEAR(quick.Order().cost_per_second, 100 * (1 + quick.Order().gain), 10);
  EXPECT_GT(quick.Order().cost_per_second, slow.Order().cost_per_second);
  EXPECT_GT(slow.Order().cost_per_second, 100);
  EXPECT_NEAR(quick.Order().cost_per_row, 0, 1e-3) << "rows are free here";
  int asked = 0;
  for (int i = 0; i < 200; ++i) asked += useless.Order().probers > 0;
  EXPECT_FALSE(useless.Order().ask);
  EXPECT_LT(asked, 12);
  EXPECT_GT(asked, 0);
}

TEST(GoodputControlTest, CostPerRowFollowsTheTimeOfARow) {
  const speculation::Draft draft = {.tree = Chain(6, std::log(0.9f))};
  Group group;
  group.step.max_rows = 128;
  for (int i = 0; i < 60; ++i) {
    for (int rows = 4; rows < 80; rows += 4) {
      group.control.OnStep(rows, 0, (10 + rows) * base::kMillisecond);
    }
    std::vector<float> expected_gain;
    const DraftOrder order = group.Order();
    for (int s = 0; s < 4; ++s) {
      group.control.OnReply(VerificationMethod::kCoupled, order, draft.tree, base::kMicrosecond);
      group.control.Evaluate(VerificationMethod::kCoupled, draft, order, 16, &expected_gain);
    }
  }
  const DraftOrder order = group.Order();
  EXPECT_TRUE(order.ask);
  // A row takes a millisecond.
  EXPECT_NEAR(order.cost_per_row, 4 * order.cost_per_second * 1e-3, 0.05 * order.cost_per_row);
}

// While it asks in every step it does not measure plain decoding, which may have become faster.
TEST(GoodputControlTest, DecodesPlainlyNowAndThenToMeasureIt) {
  const speculation::Draft draft = {.tree = Chain(6, std::log(0.4f))};
  for (const VerificationMethod verification :
       {VerificationMethod::kCoupled, VerificationMethod::kRejection}) {
    Group group{verification};
    for (int i = 0; i < 40; ++i) group.Round(draft, base::kMillisecond);
    ASSERT_TRUE(group.Order().ask);
    int plain = 0;
    for (int i = 0; i < 4000; ++i) {
      const bool asked = group.Order().ask;
      group.control.OnStep(asked ? 12 : 4, 0, 10 * base::kMillisecond);
      plain += !asked;
    }
    EXPECT_GE(plain, 4);
    EXPECT_LE(plain, 12);
  }
}

TEST(GoodputControlTest, OneAskerExploresNowAndThen) {
  const speculation::Draft draft = {.tree = Chain(6, std::log(0.7f)),
                                    .draw = SiblingDraw::kWithoutReplacement};
  Group group{VerificationMethod::kRejection};
  std::vector<int> explorers(4, 0);
  for (int i = 0; i < 400; ++i) {
    const int explorer = group.Round(draft, base::kMillisecond).explorer;
    ASSERT_LT(explorer, 4);
    if (explorer >= 0) ++explorers[explorer];
  }
  for (int times : explorers) EXPECT_GT(times, 0);
  EXPECT_LT(explorers[0] + explorers[1] + explorers[2] + explorers[3], 60);
}

// A round of one sequence where a step takes 100 ms and 5 ms more for each draft token, and replies
// come at once. Returns whether its draft tokens were verified.
bool LinearRound(GoodputControl* control, const speculation::Draft& draft, bool right) {
  const auto time = [](int32_t rows) { return (95 + 5 * rows) * base::kMillisecond; };
  const StepBase step = {.tokens = 1, .rows = 1, .max_rows = 64};
  for (int32_t rows = 1; rows <= 4; ++rows) control->OnStep(rows, 0, time(rows));
  const DraftOrder order = control->Order(VerificationMethod::kCoupled, 1, step, 16);
  if (!order.ask && order.probers == 0) return false;
  control->OnReply(VerificationMethod::kCoupled, order, draft.tree, base::kMicrosecond);
  std::vector<float> expected_gain;
  control->Evaluate(VerificationMethod::kCoupled, draft, order, 16, &expected_gain);
  GainHistogram gains;
  for (float w : expected_gain) gains.Add(w);
  if (AllocateRows(gains, step, control->step_time()).draft_tokens == 0) return false;
  std::vector<int32_t> path;
  if (right) path = {1, 2};
  control->OnVerified(VerificationMethod::kCoupled, draft, path);
  return true;
}

TEST(GoodputControlTest, RejectedDrafterIsProbedEverMoreRarelyAndRecovers) {
  const speculation::Draft draft = {.tree = Chain(2, 0)};
  GoodputControl control;
  const auto verified = [&](int rounds, bool right) {
    int trees = 0;
    for (int i = 0; i < rounds; ++i) trees += LinearRound(&control, draft, right);
    return trees;
  };
  verified(2000, /*right=*/false);
  const int rarely = verified(4000, /*right=*/false);
  EXPECT_GT(rarely, 0);
  EXPECT_LT(rarely, 4000 / 12) << "a draft token costs 5%: less than 0.5% in all";
  verified(600, /*right=*/true);
  EXPECT_GT(verified(400, /*right=*/true), 380);
}

// Draft tokens that are accepted but come too late to pay.
TEST(GoodputControlTest, AccurateButLateDrafterIsProbedRegularly) {
  const speculation::Draft draft = {.tree = Chain(6, std::log(0.7f))};
  Group late;
  for (int i = 0; i < 40; ++i) late.Round(draft, 600 * base::kMillisecond);
  std::vector<float> expected_gain;
  const auto probed = [&](int rounds) {
    int probes = 0;
    for (int i = 0; i < rounds; ++i) {
      const DraftOrder order = late.Order();
      EXPECT_FALSE(order.ask);
      if (order.probers == 0) continue;
      ++probes;
      late.control.OnReply(late.verification, order, draft.tree, 600 * base::kMillisecond);
      late.control.Evaluate(late.verification, draft, order, 16, &expected_gain);
      late.control.OnVerified(late.verification, draft, std::vector<int32_t>{1, 2, 3, 4});
    }
    return probes;
  };
  probed(1000);
  const int probes = probed(4096);
  EXPECT_GE(probes, 2 * 4096 / 130 - 2);
  EXPECT_LE(probes, 2 * 4096 / 128 + 2);
}

TEST(GoodputControlTest, DrawnTokensDoNotAffectTheirOwnTree) {
  GoodputControl control;
  std::vector<float> expected_gain, again;
  speculation::Draft draft = {.tree = Chain(3, -1), .draw = SiblingDraw::kWithoutReplacement};
  control.Evaluate(VerificationMethod::kRejection, draft, {.max_depth = 16}, 8, &expected_gain);
  EXPECT_EQ(expected_gain.size(), 8u) << "places, not nodes";
  GoodputControl other;
  draft.tree = Chain(1, -9);
  other.Evaluate(VerificationMethod::kRejection, draft, {.max_depth = 16}, 8, &again);
  EXPECT_EQ(expected_gain, again);
}

}  // namespace
}  // namespace specfabric::scheduler
