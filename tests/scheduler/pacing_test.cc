// Whether a step waits for a draft or starts without it.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <variant>

#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;
using base::Nanos;

constexpr Nanos kLearned = 350 * kMillisecond;  // before other uses of drafts are tried

// Two sequences in a group whose steps take 10 ms, and perhaps something for each row. Sequence 1
// speculates, and its replies have taken 1 ms.
struct Learned : Rig {
  explicit Learned(Nanos time_of_row = 0) : Rig(ByGoodput(time_of_row)), row(time_of_row) {
    EXPECT_TRUE(scheduler.Add(Request(1, 4, 400), 0).ok());
    SequenceRequest plain = Request(2, 4, 400);
    plain.speculate = false;
    EXPECT_TRUE(scheduler.Add(plain, 0).ok());
    Round();
    while (now < kLearned) {
      if (wanted) {
        now += base::kMillisecond;
        scheduler.OnDraft(1, wanted->round, {Chain(1, 2)}, now);
      }
      Round();
    }
    EXPECT_TRUE(wanted) << "a draft that is always right pays";
  }
  static SchedulerOptions ByGoodput(Nanos row) {
    SchedulerOptions options = Options();
    options.max_context = 1000;
    options.kv_blocks = 600;
    options.speculation = SpeculationPolicy::kGoodput;
    for (int32_t rows = 1; rows <= 32; ++rows) {
      options.profile.push_back({rows, rows, 10 * kMillisecond + rows * row});
    }
    return options;
  }
  StepPlan Round() {
    const StepPlan plan = MustPlan(now);
    now += 10 * kMillisecond + plan.rows() * row;
    wanted.reset();
    for (const DraftWanted& want : Of<DraftWanted>(Commit(plan, now))) wanted = want;
    return plan;
  }
  const Nanos row;
  Nanos now = 0;
  std::optional<DraftWanted> wanted;
};

TEST(PacingTest, ReadySequencesWaitForADraftWhileThatPays) {
  Learned group;
  const auto until = group.WaitTime(group.now);
  ASSERT_TRUE(until);
  EXPECT_GT(*until - group.now, kMillisecond) << "at most, if it does not come";
  EXPECT_LT(*until - group.now, 10 * kMillisecond);
  group.now += kMillisecond;
  group.scheduler.OnDraft(1, group.wanted->round, {group.Chain(1, 2)}, group.now);
  EXPECT_EQ(group.Round().rows(), 4);
}

// A round that waited longer yields less a second: a row must gain less for its time.
TEST(PacingTest, AfterALongWaitMoreRowsPay) {
  const auto rows_after = [](Nanos wait) {
    Learned group(2 * kMillisecond);
    group.now += wait;
    // So unlikely a token has not come before: its chance is taken to be its score.
    group.scheduler.OnDraft(1, group.wanted->round, {group.Chain(1, 8, std::log(0.6f))}, group.now);
    return group.Round().rows();
  };
  const int soon = rows_after(kMillisecond), late = rows_after(40 * kMillisecond);
  EXPECT_GT(soon, 2);
  EXPECT_GE(late, soon + 2);
  EXPECT_LT(late, 10) << "of the tree, not all";
}

TEST(PacingTest, LateDraftIsSkipped) {
  Learned group;
  const Nanos asked = group.now;
  for (int plans = 0; plans < 100; ++plans) {
    auto planned = group.scheduler.Plan(group.now);
    if (const auto* wait = std::get_if<WaitUntil>(&planned)) {
      EXPECT_GT(wait->time, group.now);
      group.now = wait->time;
      continue;
    }
    const StepPlan plan = std::get<StepPlan>(planned);
    EXPECT_EQ(plan.sequences.size(), 2u) << "both decode plainly, in one step";
    EXPECT_EQ(plan.rows(), 2);
    EXPECT_EQ(group.scheduler.stats().draft_skips + group.scheduler.stats().draft_misses, 1u);
    EXPECT_LT(group.now - asked, 20 * kMillisecond) << "two steps";
    return;
  }
  FAIL() << "it waits forever";
}

// A step that prefill fills does not wait for a draft.
TEST(PacingTest, PrefillDoesNotWaitForADraft) {
  Learned group;
  ASSERT_TRUE(group.scheduler.Add(Request(3, 90, 4), group.now).ok());
  const StepPlan plan = group.Round();
  EXPECT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.rows(), 32);
  EXPECT_EQ(group.scheduler.stats().draft_skips, 1u);
}

// Beside a few rows of prefill, which take no longer with the draft, it is waited for.
TEST(PacingTest, AShortPrefillWaitsForADraft) {
  Learned group;
  ASSERT_TRUE(group.scheduler.Add(Request(3, 4, 4), group.now).ok());
  EXPECT_TRUE(group.WaitTime(group.now));
}

}  // namespace
}  // namespace specfabric::scheduler
