// Goodput control: what is ordered, from steps and replies.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/policy/goodput.h"
#include "tests/scheduler/chain.h"

namespace specfabric::scheduler {
namespace {

using speculation::SiblingDraw;
using speculation::VerificationMethod;

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
  static StepShape OfAll(int32_t rows) { return {.rows = rows, .all_rows = rows}; }
  DraftOrder Order() { return control.Order(verification, sequences, step(), step(), 16, reading); }
  // level: what a level of the tree takes.
  DraftOrder Round(base::Nanos level) {
    for (int32_t rows = sequences; rows < 80; rows += 3)
      control.OnStep(rows, 0, step_time(rows), {.read_prompts = reading});
    const DraftOrder order = Order();
    const int deep = std::min(order.max_depth, levels);
    const base::Nanos latency = together ? level : deep * level;
    const speculation::Draft draft = {.tree = Chain(deep, std::log(chance)),
                                      .draw = speculation::UsesDraftProbs(verification)
                                                  ? SiblingDraw::kWithoutReplacement
                                                  : SiblingDraw::kCoupledTopK};
    base::Nanos elapsed = step_time(sequences);
    ModeStep step = control.Expect(OfAll(sequences));
    std::vector<float> expected_gain;
    for (int i = 0; order.ask && i < sequences; ++i) {
      control.OnAsked();
      control.OnAnswered(true);
      control.OnReply(verification, order, draft.tree, latency);
      control.Evaluate(verification, draft, order, 16, &expected_gain);
    }
    if (order.ask) {
      step = control.Expect(OfAll(sequences * (1 + deep)));
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

// Drafters that draft ahead on the cores of the target slow its steps down: that is no reason to
// expect as slow ones without them.
TEST(GoodputControlTest, StepsBesideDraftingAheadTeachNoStepTimes) {
  Group group;
  group.Asked(40, base::kMillisecond);
  const base::Nanos usual = group.control.step_time().Predict(4, 0);
  int ahead = 0;
  for (int i = 0; i < 600; ++i) {
    const bool beside = group.Order().ahead;
    ahead += beside;
    const base::Nanos time = beside ? 14 * base::kMillisecond : 10 * base::kMillisecond;
    group.step_time = [time](int32_t) { return time; };
    group.Round(beside ? base::kMillisecond / 10 : 3 * base::kMillisecond);
  }
  EXPECT_GT(ahead, 300);
  EXPECT_NEAR(base::ToSeconds(group.control.step_time().Predict(4, 0)), base::ToSeconds(usual),
              base::ToSeconds(base::kMillisecond / 10));
}

// Trees that a request keeps small, or that are of a drafter that it names, gain less.
TEST(GoodputControlTest, LimitedRoundsTeachNothingAboutOthers) {
  Group group{VerificationMethod::kRejection};
  group.Asked(100, base::kMillisecond / 4);
  const DraftOrder before = group.Order();
  ASSERT_GT(before.max_depth, 3);
  const RoundKind limited = {group.verification, /*is_limited=*/true};
  const speculation::Draft poor = {.tree = Chain(1, std::log(0.01f)),
                                   .draw = SiblingDraw::kWithoutReplacement};
  std::vector<float> expected_gain;
  for (int i = 0; i < 200; ++i) {
    group.control.OnNewText(limited, group.sequences);
    group.control.OnReply(limited, before, poor.tree, 80 * base::kMillisecond);
    group.control.OnSkipped(limited, before, 80 * base::kMillisecond);
    group.control.EvaluateNgramLookup(limited, {.tree = Chain(0, 0)}, &expected_gain);
    group.control.Evaluate(limited, poor, before, 16, &expected_gain);
  }
  const DraftOrder after = group.Order();
  EXPECT_EQ(after.max_depth, before.max_depth);
  EXPECT_EQ(after.gain, before.gain);
  EXPECT_EQ(after.latency, before.latency);
  EXPECT_EQ(after.rate, before.rate);
  // It is what is known of limited rounds.
  const DraftOrder own =
      group.control.Order(limited, group.sequences, group.step(), group.step(), 16, false);
  EXPECT_LT(own.gain, 0.5 * before.gain);
  EXPECT_EQ(own.max_depth, 1);
  EXPECT_GT(own.latency, 40 * base::kMillisecond);
  EXPECT_LT(before.latency, 10 * base::kMillisecond);
}

// The lossless methods accept alike what the n-gram lookup proposes; drafters' trees gain what they
// add to that.
TEST(GoodputControlTest, LosslessMethodsKnowWhatEachOthersLookupGains) {
  Group group{VerificationMethod::kTraversal};
  group.Asked(100, base::kMillisecond / 4);
  const DraftOrder before = group.Order();
  ASSERT_TRUE(before.ask);
  const speculation::Draft good = {.tree = Chain(4, std::log(0.9f))};
  std::vector<float> expected_gain;
  for (int i = 0; i < 200; ++i) {
    group.control.EvaluateNgramLookup(VerificationMethod::kTypical, good, &expected_gain);
  }
  EXPECT_EQ(group.Order().gain, before.gain) << "it is lossy";
  for (int i = 0; i < 200; ++i) {
    group.control.EvaluateNgramLookup(VerificationMethod::kCoupled, good, &expected_gain);
  }
  EXPECT_LT(group.Order().gain, 0.5 * before.gain);
}

// A step waits for the replies of all kinds, and yields no less for the smaller trees among them.
TEST(GoodputControlTest, OfTheKindsOfARoundTheLargestIsExpected) {
  Group group{VerificationMethod::kRejection};
  group.Asked(100, base::kMillisecond / 4);
  const DraftOrder deep = group.Order();
  ASSERT_TRUE(deep.ask);
  const ModeStep alone = group.control.Expect(Group::OfAll(4));
  ASSERT_GT(alone.delay, 0);
  const RoundKind limited = {group.verification, /*is_limited=*/true};
  group.control.Order(limited, group.sequences, group.step(), group.step(), 16, false,
                      /*first=*/false);
  EXPECT_GE(group.control.Expect(Group::OfAll(4)).delay, alone.delay);
  EXPECT_GE(group.control.Expect(Group::OfAll(4)).gain, alone.gain);
  group.control.Order(limited, group.sequences, group.step(), group.step(), 16, false);
  EXPECT_LT(group.control.Expect(Group::OfAll(4)).delay, alone.delay) << "another round";
}

// What is expected of a step, a sequence that decodes: those that do not speculate gain nothing.
TEST(GoodputControlTest, SequencesThatDoNotAskGainNothing) {
  Group group{VerificationMethod::kRejection};
  group.Asked(100, base::kMillisecond / 4);
  const DraftOrder all = group.Order();
  ASSERT_TRUE(all.ask);
  EXPECT_DOUBLE_EQ(group.control.Expect(Group::OfAll(4)).gain, all.gain);
  const DraftOrder one =
      group.control.Order(group.verification, 1, group.step(), group.step(), 16, false);
  ASSERT_TRUE(one.ask);
  EXPECT_DOUBLE_EQ(group.control.Expect(Group::OfAll(4)).gain, one.gain / group.sequences);
}

// A step beside drafters at work tells nothing of those that wait for them.
TEST(GoodputControlTest, StepsBesideDraftersAtWorkAreNotLearnedFrom) {
  GoodputControl control;
  for (int i = 0; i < 100; ++i) control.OnStep(8, 0, 10 * base::kMillisecond, {});
  for (int i = 0; i < 10; ++i) control.OnStep(8, 0, 20 * base::kMillisecond, {.draft = true});
  EXPECT_NEAR(control.step_time().Predict(8, 0), 10 * base::kMillisecond, base::kMillisecond);
  for (int i = 0; i < 10; ++i) control.OnStep(64, 0, 50 * base::kMillisecond, {.draft = true});
  EXPECT_NEAR(control.step_time().Predict(64, 0), 50 * base::kMillisecond, 10 * base::kMillisecond)
      << "unless nothing else is known";
}

// A step of some sequences yields their share of a step of all, beside its prefill.
TEST(GoodputControlTest, AStepOfSomeYieldsTheirShare) {
  GoodputControl control;
  // Fixed and by the row, as far as steps of 64 rows are known.
  for (int i = 0; i < 400; ++i) {
    const int32_t rows = 1 + i % 64;
    control.OnStep(rows, 0, (10 + rows) * base::kMillisecond, {});
  }
  const auto expected = [&](const StepShape& step) {
    return static_cast<double>(control.Expect(step).time) / base::kMillisecond;
  };
  EXPECT_NEAR(expected({.rows = 16, .all_rows = 16}), 26, 0.5);
  EXPECT_NEAR(expected({.rows = 8, .share = 0.5, .all_rows = 8}), 13, 0.5);
  EXPECT_NEAR(expected({.rows = 8, .share = 0.5, .all_rows = 28}), 33, 0.5);
  EXPECT_NEAR(expected({.all_rows = 20}), 30, 0.5) << "a prefill alone";
}

// Of a drafter that drafts ahead other trees come than of one that does not, and at other times.
TEST(GoodputControlTest, LevelsAreKeptApartByMode) {
  GoodputControl control;
  const auto reply = [&](bool ahead, int levels) {
    const DraftOrder order = {.max_depth = 16, .ahead = ahead};
    control.OnReply(VerificationMethod::kCoupled, order, Chain(levels, -1),
                    levels * base::kMillisecond);
  };
  for (int i = 0; i < 40; ++i) reply(/*ahead=*/false, 7 + i % 3);
  const base::Nanos latency = control.Deepest(VerificationMethod::kCoupled, {}, 64).latency;
  EXPECT_GT(latency, 7 * base::kMillisecond);
  for (int i = 0; i < 40; ++i) reply(/*ahead=*/true, 1 + i % 3);
  EXPECT_EQ(control.Deepest(VerificationMethod::kCoupled, {}, 64).latency, latency);
}

// One that drafts ahead sends less, as it will have the rest soon: of that the other does not take
// less to come.
TEST(GoodputControlTest, GainsAreKeptApartByMode) {
  Group group{.sequences = 1, .chance = 0.9f};
  const DraftOrder order = group.AskedAfter(60, base::kMicrosecond);
  ASSERT_TRUE(order.cost_limited);
  DraftOrder other = order;
  other.ahead = !order.ahead;
  const speculation::Draft small = {.tree = Chain(1, std::log(0.9f)),
                                    .draw = SiblingDraw::kCoupledTopK};
  std::vector<float> expected_gain;
  for (int i = 0; i < 100; ++i) {
    group.control.Evaluate(group.verification, small, other, 16, &expected_gain);
  }
  const DraftOrder after = group.Order();
  ASSERT_EQ(after.ahead, order.ahead);
  EXPECT_NEAR(after.gain, order.gain, 0.1 * order.gain);
  for (int i = 0; i < 100; ++i) {
    group.control.Evaluate(group.verification, small, order, 16, &expected_gain);
  }
  EXPECT_LT(group.Order().gain, 0.5 * order.gain);
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
  std::vector<int> explorers(4, 0), rounds;
  for (int i = 0; i < 400; ++i) {
    const DraftOrder order = group.Round(2 * base::kMillisecond);
    ASSERT_LT(order.explorer, 4);
    if (order.explorer < 0) continue;
    ++explorers[order.explorer];
    rounds.push_back(i);
    const DraftOrder deeper = group.control.Deeper(group.verification, order, 16);
    EXPECT_EQ(deeper.max_depth, order.max_depth + 1);
    EXPECT_GT(deeper.latency, order.latency);
    EXPECT_EQ(deeper.must_wait, order.must_wait);
  }
  for (int times : explorers) EXPECT_GT(times, 0);
  ASSERT_LT(rounds.size(), 60u);
  // The first soon after each other.
  EXPECT_LT(rounds[2] - rounds[0], 8);
  EXPECT_GE(rounds.back() - rounds[rounds.size() - 2], 16);
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
