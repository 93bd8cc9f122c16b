// Whether a step waits for a draft or starts without it.

#include <gtest/gtest.h>

#include <optional>
#include <variant>

#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;
using base::Nanos;

// Two sequences in a group whose steps take 10 ms. Sequence 1 speculates, and its replies have
// taken 1 ms.
struct Learned : Rig {
  Learned() : Rig(ByGoodput()) {
    EXPECT_TRUE(scheduler.Add(Request(1, 4, 400), 0).ok());
    SequenceRequest plain = Request(2, 4, 400);
    plain.speculate = false;
    EXPECT_TRUE(scheduler.Add(plain, 0).ok());
    Round();
    while (now < base::kSecond) {
      if (wanted) {
        now += base::kMillisecond;
        scheduler.OnDraft(1, wanted->round, {Chain(1, 2)}, now);
      }
      Round();
    }
    EXPECT_TRUE(wanted) << "a draft that is always right pays";
  }
  static SchedulerOptions ByGoodput() {
    SchedulerOptions options = Options();
    options.max_context = 1000;
    options.kv_blocks = 600;
    options.speculation = SpeculationPolicy::kGoodput;
    return options;
  }
  StepPlan Round() {
    const StepPlan plan = MustPlan(now);
    now += 10 * kMillisecond;
    wanted.reset();
    for (const DraftWanted& want : Of<DraftWanted>(Commit(plan, now))) wanted = want;
    return plan;
  }
  Nanos now = 0;
  std::optional<DraftWanted> wanted;
};

TEST(PacingTest, ReadySequencesWaitForADraftWhileThatPays) {
  Learned group;
  const auto until = group.WaitTime(group.now);
  ASSERT_TRUE(until);
  EXPECT_NEAR(static_cast<double>(*until - group.now), 1e6, 0.5e6);
  group.now = *until;
  group.scheduler.OnDraft(1, group.wanted->round, {group.Chain(1, 2)}, group.now);
  EXPECT_EQ(group.Round().rows(), 4);
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
    EXPECT_LT(group.now - asked, 10 * kMillisecond) << "two draft tokens do not pay for a step";
    return;
  }
  FAIL() << "it waits forever";
}

// Two draft tokens pay for waiting a tenth of a step of two rows, but not of a step with 30 more
// prefill rows.
TEST(PacingTest, PrefillDoesNotWaitForOneDraft) {
  Learned group;
  ASSERT_TRUE(group.scheduler.Add(Request(3, 90, 4), group.now).ok());
  const StepPlan plan = group.Round();
  EXPECT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.rows(), 32);
  EXPECT_EQ(group.scheduler.stats().draft_skips, 1u);
}

// No draft is requested while a step would not wait for it.
TEST(PacingTest, NoDraftRequestsWhilePrefillPaysMore) {
  Learned group;
  ASSERT_TRUE(group.scheduler.Add(Request(3, 90, 4), group.now).ok());
  group.Round();
  EXPECT_FALSE(group.wanted);
  for (int steps = 0; steps < 8 && !group.wanted; ++steps) group.Round();
  EXPECT_TRUE(group.wanted) << "requested again after the prefill";
}

}  // namespace
}  // namespace specfabric::scheduler
