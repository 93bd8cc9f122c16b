// Which use of drafters is chosen, from the yields of steps.

#include "scheduler/policy/draft_modes.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;
using base::Nanos;

// A group that expects the same of all modes, 10 ms a step, and whose steps take as much less as
// `yield` says. Drafters reply to all, or to none.
struct Group {
  std::function<double(DraftMode)> yield;
  ByMode<double> rates = {{1, 1, 1}};
  int32_t running = 8;
  bool replies = true;
  bool reading = false;
  DraftModes modes = {};
  Nanos now = 0;
  std::array<int, kDraftModes> steps = {};

  DraftModes::Use Step() {
    constexpr Nanos kExpected = 10 * kMillisecond;
    if (modes.Due(running)) modes.Choose(running, rates, reading);
    const DraftModes::Use use = modes.Current();
    ++steps[static_cast<size_t>(use.mode)];
    if (use.mode != DraftMode::kNone) {
      for (int i = 0; i < running; ++i) {
        modes.OnAsked();
        if (replies) modes.OnReply(/*in_time=*/true);
      }
    }
    const auto elapsed = static_cast<Nanos>(kExpected / yield(use.mode));
    now += elapsed;
    modes.OnStep({.running = running, .reading = reading, .elapsed = elapsed, .time = kExpected});
    return use;
  }
  // The share of steps in each mode, of so many.
  std::array<double, kDraftModes> Shares(int count) {
    steps = {};
    for (int i = 0; i < count; ++i) Step();
    std::array<double, kDraftModes> shares;
    for (int m = 0; m < kDraftModes; ++m) shares[m] = static_cast<double>(steps[m]) / count;
    return shares;
  }
};

std::function<double(DraftMode)> Yields(double none, double just_in_time, double ahead) {
  return [=](DraftMode mode) {
    return mode == DraftMode::kNone ? none : mode == DraftMode::kAhead ? ahead : just_in_time;
  };
}

TEST(DraftModesTest, UsesTheModeThatYieldsTheMost) {
  for (const DraftMode best : {DraftMode::kNone, DraftMode::kJustInTime, DraftMode::kAhead}) {
    Group group{[best](DraftMode mode) {
      return mode == best ? 1.5 : mode == DraftMode::kNone ? 1.0 : 1.2;
    }};
    if (best == DraftMode::kNone) group.yield = Yields(1, 0.8, 0.7);
    group.Shares(400);
    EXPECT_GT(group.Shares(4000)[static_cast<size_t>(best)], 0.88) << static_cast<int>(best);
  }
}

// What texts and times say is followed at the next window, in whatever mode that was learned.
TEST(DraftModesTest, FollowsWhatIsExpected) {
  Group group{Yields(1, 1, 1)};
  group.rates = {{1, 1.5, 1.2}};
  group.Shares(200);
  EXPECT_GT(group.Shares(1000)[static_cast<size_t>(DraftMode::kJustInTime)], 0.85);
  group.rates = {{1, 0.9, 0.8}};
  group.Shares(64);
  EXPECT_GT(group.Shares(64)[static_cast<size_t>(DraftMode::kNone)], 0.6);
}

// Replies that do not come gain nothing, and count as what they were expected to gain.
TEST(DraftModesTest, MissingRepliesCount) {
  DraftModes modes;
  int none = 0;
  for (int i = 0; i < 400; ++i) {
    if (modes.Due(4)) modes.Choose(4, {{1, 1.6, 1.6}}, /*reading=*/false);
    const bool asks = modes.Current().mode != DraftMode::kNone;
    none += asks ? 0 : 1;
    for (int s = 0; asks && s < 4; ++s) {
      modes.OnAsked();
      modes.OnReply(/*in_time=*/s == 0);
    }
    modes.OnStep(
        {.running = 4, .elapsed = 10 * kMillisecond, .time = 10 * kMillisecond, .gain = 1});
  }
  EXPECT_GT(none, 250) << "a quarter of the replies comes: 1.6 * 1.25 / 2 is no gain";
}

TEST(DraftModesTest, NoDrafterIsLeft) {
  Group group{Yields(1, 1.5, 1.2)};
  group.Shares(100);
  group.modes.Restart();
  EXPECT_TRUE(group.modes.Due(group.running));
  EXPECT_TRUE(group.Step().catches_up) << "those that come have yet to read";
}

// The first window of a mode is no trial, but what plain decoding yields is known all the same.
TEST(DraftModesTest, DraftingThatIsFarWorseThanPlainDecodingEndsEarly) {
  Group group{Yields(1, 0.5, 0.5)};
  int steps = 0;
  while (group.Step().mode != DraftMode::kNone) ++steps;
  EXPECT_LT(steps, 24) << "both ways of drafting";
}

// Trials of the others cost one part in a hundred of the time.
TEST(DraftModesTest, TrialsCostLittle) {
  for (const double worse : {0.2, 0.5, 0.9}) {
    Group group{Yields(1, worse, worse)};
    group.Shares(2000);
    const Nanos began = group.now;
    const int count = 20'000;
    for (int i = 0; i < count; ++i) group.Step();
    const double got = count * 10e6 / static_cast<double>(group.now - began);
    EXPECT_GT(got, 0.975) << worse;
    EXPECT_LT(got, 1) << "it is tried at all";
  }
}

TEST(DraftModesTest, FollowsAChange) {
  Group group{Yields(1, 0.7, 0.7)};
  group.Shares(1000);
  group.yield = Yields(1, 1.5, 1.2);
  group.Shares(6000);
  EXPECT_GT(group.Shares(1000)[static_cast<size_t>(DraftMode::kJustInTime)], 0.9);
  group.yield = Yields(1, 0.6, 0.6);
  group.Shares(64);
  EXPECT_GT(group.Shares(1000)[static_cast<size_t>(DraftMode::kNone)], 0.9);
}

TEST(DraftModesTest, OfModesThatYieldTheSameTheOneThatAsksLess) {
  Group group{Yields(1, 1, 1)};
  group.Shares(500);
  EXPECT_GT(group.Shares(1000)[static_cast<size_t>(DraftMode::kNone)], 0.7);
  Group drafts{Yields(1, 1.5, 1.5)};
  drafts.Shares(500);
  EXPECT_GT(drafts.Shares(1000)[static_cast<size_t>(DraftMode::kJustInTime)], 0.8);
}

// What a step yields at one load says little of another one.
TEST(DraftModesTest, LoadsAreKnownApart) {
  Group group{Yields(1, 1.5, 1.2)};
  group.running = 1;
  group.Shares(500);
  group.yield = Yields(1, 0.8, 0.8);
  group.running = 64;
  group.Shares(500);
  EXPECT_GT(group.Shares(500)[static_cast<size_t>(DraftMode::kNone)], 0.85);
  group.yield = Yields(1, 1.5, 1.2);
  group.running = 1;
  EXPECT_GT(group.Shares(100)[static_cast<size_t>(DraftMode::kJustInTime)], 0.8) << "at once";
}

// What was learned of a mode at one load is not learned anew at another that was in use before.
TEST(DraftModesTest, AModeIsNewOnce) {
  Group group{Yields(1, 1, 0.5), {{1, 1.2, 1.2}}};
  group.Shares(24);  // a window just in time
  group.running = 64;
  EXPECT_GT(group.Shares(200)[static_cast<size_t>(DraftMode::kAhead)], 0);
  group.running = 8;
  group.rates = {{1, 1.2, 1.5}};
  EXPECT_EQ(group.Shares(40)[static_cast<size_t>(DraftMode::kAhead)], 0);
}

// Drafters read the texts first: one level is asked for, and no step waits, until they reply; then
// steps wait, before they are measured.
TEST(DraftModesTest, DraftersCatchUpBeforeTheyAreMeasured) {
  constexpr ByMode<double> kUnknown = {{1, 2, 2}};
  Group group{Yields(1, 1, 1), kUnknown};
  group.replies = false;
  for (int i = 0; i < 10; ++i) {
    const DraftModes::Use use = group.Step();
    EXPECT_TRUE(use.one_level && use.catches_up && !use.must_wait);
  }
  group.replies = true;
  group.Step();
  const DraftModes::Use settles = group.Step();
  EXPECT_TRUE(!settles.one_level && settles.catches_up && settles.must_wait);
  for (int i = 0; i < 3; ++i) group.Step();
  const DraftModes::Use measured = group.Step();
  EXPECT_TRUE(!measured.one_level && !measured.catches_up && measured.must_wait);
  // Drafters that never reply do not hold it up for ever.
  Group silent{Yields(1, 0.9, 0.9), kUnknown};
  silent.replies = false;
  silent.Shares(1000);
  EXPECT_GT(silent.Shares(1000)[static_cast<size_t>(DraftMode::kNone)], 0.75);
}

// A draft worker goes on drafting ahead until it is asked for something else.
TEST(DraftModesTest, TheLastRequestBeforeNoneStopsDraftingAhead) {
  Group group{Yields(1, 1.1, 1.5)};
  group.Shares(600);
  group.yield = Yields(1, 0.5, 0.5);
  DraftModes::Use before = group.Step();
  for (int i = 0; i < 300; ++i) {
    const DraftModes::Use use = group.Step();
    if (use.mode == DraftMode::kNone) {
      EXPECT_EQ(before.mode, DraftMode::kJustInTime);
      return;
    }
    before = use;
  }
  FAIL() << "it still drafts";
}

// Steps beside which drafters read prompts are slow in a mode that yields the most else.
TEST(DraftModesTest, StepsBesidePromptsAreNotMeasured) {
  Group group{Yields(1, 1.5, 1.2)};
  group.Shares(400);
  for (int burst = 0; burst < 20; ++burst) {
    group.reading = true;
    group.yield = Yields(1, 0.3, 0.3);
    group.Shares(20);
    group.reading = false;
    group.yield = Yields(1, 1.5, 1.2);
    EXPECT_GT(group.Shares(20)[static_cast<size_t>(DraftMode::kJustInTime)], 0.5) << burst;
  }
}

// Where prompts are read all the time, that is what drafters yield.
TEST(DraftModesTest, StepsBesidePromptsAreMeasuredWhereThatNeverEnds) {
  Group group{Yields(1, 0.5, 0.5)};
  group.reading = true;
  group.Shares(200);
  EXPECT_GT(group.Shares(1000)[static_cast<size_t>(DraftMode::kNone)], 0.8);
}

// Plain decoding is measured once drafters have done what they were asked for: until then steps are
// as slow as beside drafters.
TEST(DraftModesTest, PlainDecodingIsMeasuredAtRest) {
  Group group{Yields(1, 0.9, 0.9)};
  group.replies = false;
  int since_asked = 100;
  int plain = 0;
  for (int i = 0; i < 2000; ++i) {
    const DraftModes::Use use = group.Step();
    since_asked = use.mode == DraftMode::kNone ? since_asked + 1 : 0;
    // They take thirty steps to finish.
    group.yield = Yields(since_asked < 30 ? 0.4 : 1, 0.9, 0.9);
    if (since_asked == 30) {
      for (int s = 0; s < group.running; ++s) group.modes.OnReply(/*in_time=*/false);
    }
    plain += i >= 1000 && use.mode == DraftMode::kNone;
  }
  EXPECT_GT(plain, 800);
}

// Until they have, steps teach nothing of steps without drafters, however long that takes.
TEST(DraftModesTest, DraftersAtWorkAreSaidToCatchUp) {
  Group group{Yields(1, 0.5, 0.5), {{1, 2, 2}}};
  group.replies = false;
  while (group.Step().mode != DraftMode::kNone) {
  }
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(group.Step().catches_up) << i;
  for (int s = 0; s < group.running; ++s) group.modes.OnReply(/*in_time=*/false);
  group.Step();
  EXPECT_FALSE(group.Step().catches_up);
  // Nor are they who have said that no reply will come.
  Group refusing{Yields(1, 0.5, 0.5), {{1, 2, 2}}};
  refusing.replies = false;
  while (refusing.Step().mode != DraftMode::kNone) {
  }
  for (int s = 0; s < refusing.running; ++s) refusing.modes.OnNoReply();
  for (int i = 0; i < 3; ++i) refusing.Step();
  EXPECT_FALSE(refusing.Step().catches_up);
}

// A request makes a drafter read the text: none is sent where there is nothing to stop.
TEST(DraftModesTest, NobodyIsAskedWherePlainDecodingGoesOn) {
  Group group{Yields(1, 0.5, 0.5)};
  group.Shares(300);
  while (group.Step().mode != DraftMode::kNone) {
  }
  for (int i = 0; i < 3; ++i) group.Step();
  group.running = 64;  // a new load, of which nothing is known
  EXPECT_EQ(group.Shares(16)[static_cast<size_t>(DraftMode::kNone)], 1);
}

// Drafters that do not catch up in one mode would not in the other.
TEST(DraftModesTest, WhoDoesNotCatchUpIsNotAskedInTheOtherMode) {
  Group group{Yields(1, 1, 1), {{1, 2, 2}}};
  group.replies = false;
  while (group.Step().mode != DraftMode::kNone) {
  }
  group.replies = true;
  EXPECT_EQ(group.Shares(20)[static_cast<size_t>(DraftMode::kNone)], 1);
}

// Texts that were left unread are not read soon after for a gain that the reading may cost; of
// fewer sequences, or for much, they are.
TEST(DraftModesTest, ManyTextsAreNotReadForALittle) {
  const auto asks_after_none = [](double rate, int32_t running) {
    constexpr double kPlain = 64.0 / (10 * kMillisecond);
    Group group{Yields(1, 1, 1), {{kPlain, 2 * kPlain, 2 * kPlain}}};
    group.running = 64;
    group.Shares(200);
    group.rates = {{kPlain, 0.9 * kPlain, 0.9 * kPlain}};
    group.Shares(100);
    group.rates = {{kPlain, rate * kPlain, rate * kPlain}};
    group.running = running;
    return group.Shares(40)[static_cast<size_t>(DraftMode::kNone)] < 1;
  };
  EXPECT_FALSE(asks_after_none(1.1, 64));
  EXPECT_FALSE(asks_after_none(1.1, 40));
  EXPECT_TRUE(asks_after_none(1.1, 8));
  EXPECT_TRUE(asks_after_none(1.3, 64));
}

}  // namespace
}  // namespace specfabric::scheduler
