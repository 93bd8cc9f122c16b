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

// The replies of a round are alike: they say nothing of what a level takes, rounds do.
TEST(ReplyTimeTest, RemembersRoundsHoweverManyAsk) {
  ReplyTime time;
  for (int round = 0; round < 20; ++round) {
    const int depth = 1 + round % 2;
    for (int i = 0; i < 64; ++i) time.Observe(64, depth, 2 * base::kMillisecond + depth * 100'000);
  }
  EXPECT_NEAR(time.Expect(64, 1), 2.1e6, 0.2e6);
  EXPECT_NEAR(time.Expect(64, 2), 2.2e6, 0.2e6);
  EXPECT_NEAR(time.Expect(64, 3), 2.3e6, 0.3e6);
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

// --- Goodput control -----------------------------------------------------------------------------

// A group whose drafter's trees are chains whose tokens are accepted with the same chance, and as
// many levels as are asked for. Rows are free, and a step takes 10 ms.
struct Group {
  VerificationMethod verification = VerificationMethod::kCoupled;
  int32_t sequences = 4;
  float chance = 0.7f;
  int levels = 6;         // at most
  bool together = false;  // all levels take what one does
  bool reading = false;   // drafters read prompts
  std::function<base::Nanos(int32_t rows)> step_time = [](int32_t) {
    return 10 * base::kMillisecond;
  };
  GoodputControl control = GoodputControl();

  StepBase step() const {
    return {.tokens = static_cast<double>(sequences),
            .rows = static_cast<double>(sequences),
            .max_rows = 128};
  }
  DraftOrder Order() { return control.Order(verification, sequences, step(), step(), 16, reading); }
  // level: what a level of the tree takes.
  DraftOrder Round(base::Nanos level) {
    for (int32_t rows = sequences; rows < 80; rows += 3)
      control.OnStep(rows, 0, step_time(rows), reading);
    const DraftOrder order = Order();
    const int deep = std::min(order.max_depth, levels);
    const base::Nanos latency = together ? level : deep * level;
    const speculation::Draft draft = {.tree = Chain(deep, std::log(chance)),
                                      .draw = speculation::UsesDraftProbs(verification)
                                                  ? SiblingDraw::kWithoutReplacement
                                                  : SiblingDraw::kCoupledTopK};
    base::Nanos elapsed = step_time(sequences);
    ModeStep step = control.Expect(sequences, 0);
    std::vector<float> expected_gain;
    for (int i = 0; order.ask && i < sequences; ++i) {
      control.OnAsked();
      control.OnAnswered(true);
      control.OnReply(verification, order, draft.tree, latency);
      control.Evaluate(verification, draft, order, 16, &expected_gain);
    }
    if (order.ask) {
      step = control.Expect(sequences * (1 + deep), 0);
      elapsed = latency + step_time(sequences * (1 + deep));
    }
    step.running = sequences;
    step.reading = reading;
    step.elapsed = elapsed;
    control.OnModeStep(step);
    return order;
  }
  // The first order that asks after so many rounds.
  DraftOrder AskedAfter(int rounds, base::Nanos level) {
    Asked(rounds, level);
    for (int i = 0; i < 100; ++i) {
      const DraftOrder order = Round(level);
      if (order.ask && order.cost_limited && !order.catches_up) return order;
    }
    ADD_FAILURE() << "it does not ask";
    return {};
  }
  // Of so many rounds, those that asked.
  int Asked(int rounds, base::Nanos level) {
    int asked = 0;
    for (int i = 0; i < rounds; ++i) asked += Round(level).ask;
    return asked;
  }
};

TEST(GoodputControlTest, AsksForOneLevelUntilDraftersReplyThenForAll) {
  Group group;
  const DraftOrder first = group.Order();
  EXPECT_TRUE(first.ask);
  EXPECT_EQ(first.max_nodes, 16);
  EXPECT_EQ(first.max_depth, 1);
  EXPECT_FALSE(first.must_wait);
  EXPECT_TRUE(first.catches_up);
  EXPECT_GT(first.gain, 0);
  EXPECT_EQ(group.control.ReplyTimeout(VerificationMethod::kCoupled, first), base::kForever);
  group.Round(base::kMillisecond);
  const DraftOrder second = group.Order();
  EXPECT_EQ(second.max_depth, 16) << "what deeper levels gain is not known";
  EXPECT_TRUE(second.must_wait);
}

// Where growing a tree as far as it pays would change the output distribution, the number of levels
// follows from past trees.
TEST(GoodputControlTest, FasterRepliesGiveDeeperTrees) {
  Group quick{VerificationMethod::kRejection}, slow{VerificationMethod::kRejection},
      useless{VerificationMethod::kRejection};
  for (int i = 0; i < 60; ++i) {
    quick.Round(10 * base::kMicrosecond);
    slow.Round(3 * base::kMillisecond);
    useless.Round(100 * base::kMillisecond);
  }
  EXPECT_EQ(quick.Order().max_depth, 6);
  EXPECT_TRUE(slow.Order().ask);
  EXPECT_LT(slow.Order().max_depth, 4);
  EXPECT_GT(slow.Order().gain, 0.5);
  // A trial of it costs seconds, of which hundreds must go by before the next.
  EXPECT_LT(useless.Asked(400, 100 * base::kMillisecond), 40);
}

// A drafter whose tokens come too late is tried again when it is time, and used once it is quick.
TEST(GoodputControlTest, DrafterThatBecomesQuickIsUsed) {
  Group group;
  group.Asked(100, 30 * base::kMillisecond);
  EXPECT_LT(group.Asked(2000, 30 * base::kMillisecond), 200);
  group.Asked(10'000, base::kMillisecond / 4);
  EXPECT_GT(group.Asked(400, base::kMillisecond / 4), 300);
}

// What trees gained in the last text says little of one that begins; with many beside it, little
// changes.
TEST(GoodputControlTest, ANewTextIsExpectedToGainTheUsual) {
  Group group{.sequences = 1, .chance = 0.9f};
  group.Asked(3000, base::kMillisecond / 4);
  const double usual = group.AskedAfter(0, base::kMillisecond / 4).gain;
  group.chance = 0.2f;
  const double of_late = group.AskedAfter(40, base::kMillisecond / 4).gain;
  ASSERT_LT(of_late, 0.6 * usual);
  group.control.OnNewText(group.verification, 64);
  EXPECT_LT(group.AskedAfter(0, base::kMillisecond / 4).gain, 0.6 * usual);
  group.control.OnNewText(group.verification, 1);
  EXPECT_GT(group.AskedAfter(0, base::kMillisecond / 4).gain, 0.8 * usual);
}

// What replies take while drafters read prompts is not what they take else, or the reverse.
TEST(GoodputControlTest, RepliesBesidePromptsAreKeptApart) {
  Group group{.together = true};
  group.Asked(40, base::kMillisecond);
  const base::Nanos usual = group.Order().latency;
  group.reading = true;
  group.Asked(10, 5 * base::kMillisecond);
  const DraftOrder beside = group.Order();
  EXPECT_TRUE(beside.reading);
  EXPECT_GT(beside.latency, 3 * usual);
  group.reading = false;
  EXPECT_EQ(group.Order().latency, usual);
}

// Drafters that read prompts as the first replies come would not pay if that went on.
TEST(GoodputControlTest, SlowRepliesBesideTheFirstPromptsSayLittle) {
  Group group{VerificationMethod::kRejection};
  group.reading = true;
  group.Asked(20, 100 * base::kMillisecond);
  EXPECT_EQ(group.Order().max_depth, 1) << "it goes on to ask";
  group.reading = false;
  EXPECT_EQ(group.Asked(100, base::kMillisecond / 4), 100);
}

// A step beside which drafters read prompts is no slower step.
TEST(GoodputControlTest, StepsBesidePromptsTeachNoStepTimes) {
  Group group;
  group.Asked(40, base::kMillisecond);
  const base::Nanos usual = group.control.step_time().Predict(4, 0);
  group.reading = true;
  group.step_time = [](int32_t) { return 40 * base::kMillisecond; };
  group.Asked(20, base::kMillisecond);
  EXPECT_EQ(group.control.step_time().Predict(4, 0), usual);
}

TEST(GoodputControlTest, CostPerSecondFollowsTheRate) {
  Group quick{.sequences = 1}, slow{.sequences = 1};
  const DraftOrder of_quick = quick.AskedAfter(40, 10 * base::kMicrosecond);
  const DraftOrder of_slow = slow.AskedAfter(40, 2 * base::kMillisecond);
  // Ten milliseconds a step: 100 tokens a second without drafts, and with them as many more as are
  // accepted, as long as the replies take no time.
  EXPECT_EQ(of_quick.max_depth, of_slow.max_depth);
  EXPECT_NEAR(of_quick.cost_per_second, 100 * (1 + of_quick.gain), 10);
  EXPECT_GT(of_quick.cost_per_second, of_slow.cost_per_second);
  EXPECT_GT(of_slow.cost_per_second, 100);
  EXPECT_NEAR(of_quick.cost_per_row, 0, 1e-3) << "rows are free here";
}

TEST(GoodputControlTest, CostPerRowFollowsTheTimeOfARow) {
  Group group{.sequences = 1, .chance = 0.9f};
  group.step_time = [](int32_t rows) { return (10 + rows) * base::kMillisecond; };
  for (int i = 0; i < 60; ++i) group.Round(base::kMicrosecond);
  const DraftOrder order = group.Order();
  EXPECT_TRUE(order.ask);
  EXPECT_TRUE(order.cost_limited);
  // A row takes a millisecond.
  EXPECT_NEAR(order.cost_per_row, order.cost_per_second * 1e-3, 0.1 * order.cost_per_row);
}

// Where each level takes a pass, all trees have the same depth: the step would wait for the
// deepest.
TEST(GoodputControlTest, TreesOfSeveralGrowByThemselvesOnlyIfLevelsComeTogether) {
  Group apart, together{.together = true};
  for (int i = 0; i < 60; ++i) {
    apart.levels = together.levels = 1 + i % 6;
    apart.Round(base::kMillisecond);
    together.Round(base::kMillisecond);
  }
  EXPECT_TRUE(apart.Order().ask);
  EXPECT_FALSE(apart.Order().cost_limited);
  EXPECT_TRUE(together.Order().cost_limited);
}

TEST(GoodputControlTest, OneAskerExploresOneLevelMoreNowAndThen) {
  Group group{VerificationMethod::kRejection};
  std::vector<int> explorers(4, 0);
  for (int i = 0; i < 400; ++i) {
    const DraftOrder order = group.Round(2 * base::kMillisecond);
    ASSERT_LT(order.explorer, 4);
    if (order.explorer < 0) continue;
    ++explorers[order.explorer];
    const DraftOrder deeper = group.control.Deeper(group.verification, order, 16);
    EXPECT_EQ(deeper.max_depth, order.max_depth + 1);
    EXPECT_GT(deeper.latency, order.latency);
    EXPECT_EQ(deeper.must_wait, order.must_wait);
  }
  for (int times : explorers) EXPECT_GT(times, 0);
  EXPECT_LT(explorers[0] + explorers[1] + explorers[2] + explorers[3], 60);
}

// What was measured before the first step counts from the first order on.
TEST(GoodputControlTest, ProfileTellsWhatStepsTake) {
  std::vector<StepSample> profile;
  for (const int32_t rows : StepTime::Sizes(128)) {
    profile.push_back({rows, rows, (rows <= 64 ? 5 : 5 * rows / 64) * base::kMillisecond});
  }
  const GoodputControl control(profile);
  for (const int32_t rows : {1, 7, 33, 64}) {
    EXPECT_NEAR(static_cast<double>(control.step_time().Predict(rows, 0)), 5e6, 0.2e6) << rows;
  }
  EXPECT_NEAR(static_cast<double>(control.step_time().Predict(128, 0)), 10e6, 0.3e6);
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
