#include "scheduler/draft_wait.h"

#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;

const SchedulerOptions kOptions = {.min_draft_wait = 1 * kMillisecond,
                                   .max_draft_wait = 50 * kMillisecond,
                                   .max_misses = 2,
                                   .probe_rounds = 3};

TEST(ReplyLatencyTest, WaitsTwiceTheSmoothedLatencyWithinBounds) {
  ReplyLatency latency;
  EXPECT_EQ(latency.Wait(kOptions), 50 * kMillisecond);  // nothing known yet
  latency.Observe(8 * kMillisecond);
  EXPECT_EQ(latency.Wait(kOptions), 16 * kMillisecond);
  latency.Observe(16 * kMillisecond);
  EXPECT_EQ(latency.Wait(kOptions), 18 * kMillisecond);
  for (int i = 0; i < 200; ++i) latency.Observe(0);
  EXPECT_EQ(latency.Wait(kOptions), 1 * kMillisecond);
  for (int i = 0; i < 200; ++i) latency.Observe(base::kSecond);
  EXPECT_EQ(latency.Wait(kOptions), 50 * kMillisecond);
}

TEST(DraftWaitTest, ARoundThatIsAnswered) {
  DraftWait wait{ReplyLatency()};
  const auto deadline = wait.StartRound(true, 1000, kOptions);
  ASSERT_TRUE(deadline);
  EXPECT_EQ(*deadline, 1000 + 50 * kMillisecond);
  EXPECT_TRUE(wait.waiting());
  EXPECT_EQ(wait.OnReply(1000 + 4 * kMillisecond), 4 * kMillisecond);
  EXPECT_FALSE(wait.waiting());
  EXPECT_TRUE(wait.asked());
  wait.EndRound();
  EXPECT_FALSE(wait.asked());
  EXPECT_EQ(*wait.StartRound(true, 0, kOptions), 8 * kMillisecond);
  EXPECT_EQ(wait.round(), 2u);
}

TEST(DraftWaitTest, AsksForNothingThatIsOfNoUse) {
  DraftWait wait{ReplyLatency()};
  EXPECT_FALSE(wait.StartRound(false, 0, kOptions));
  EXPECT_FALSE(wait.waiting());
  EXPECT_EQ(wait.round(), 1u);
}

TEST(DraftWaitTest, StopsAskingAfterMissesAndProbesNowAndThen) {
  DraftWait wait{ReplyLatency()};
  std::vector<bool> asked;
  for (int round = 0; round < 12; ++round) {
    const bool asks = wait.StartRound(true, 0, kOptions).has_value();
    asked.push_back(asks);
    if (asks) wait.OnMiss(0, kOptions);
    wait.EndRound();
  }
  EXPECT_EQ(asked, (std::vector<bool>{1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0}));
  // A probe that is answered ends it.
  wait.StartRound(true, 0, kOptions);
  ASSERT_TRUE(wait.StartRound(true, 0, kOptions));
  wait.OnReply(0);
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(wait.StartRound(true, 0, kOptions));
    wait.OnReply(0);
  }
}

TEST(DraftWaitTest, OneMissIsForgivenByAReply) {
  DraftWait wait{ReplyLatency()};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(wait.StartRound(true, 0, kOptions));
    wait.OnMiss(0, kOptions);
    EXPECT_TRUE(wait.StartRound(true, 0, kOptions));
    wait.OnReply(0);
  }
}

TEST(DraftWaitTest, UnavailableDraftsAreNoMisses) {
  DraftWait wait{ReplyLatency()};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(wait.StartRound(true, 0, kOptions));
    wait.OnUnavailable();
    EXPECT_FALSE(wait.waiting());
  }
}

TEST(DraftWaitTest, LearnsToWaitLongerFromMissesAndFromLateReplies) {
  ReplyLatency quick;
  quick.Observe(1 * kMillisecond);
  DraftWait wait(quick);
  EXPECT_EQ(*wait.StartRound(true, 0, kOptions), 2 * kMillisecond);
  wait.OnMiss(2 * kMillisecond, kOptions);
  wait.EndRound();
  const auto second = wait.StartRound(true, 3 * kMillisecond, kOptions);
  EXPECT_GT(*second - 3 * kMillisecond, 2 * kMillisecond);
  EXPECT_EQ(wait.OnStaleReply(1, 9 * kMillisecond), 9 * kMillisecond);
  EXPECT_FALSE(wait.OnStaleReply(1, 9 * kMillisecond));  // counts once
  EXPECT_FALSE(wait.OnStaleReply(0, 9 * kMillisecond));
  wait.OnReply(4 * kMillisecond);
  EXPECT_GT(*wait.StartRound(true, 0, kOptions), 3 * kMillisecond);
}

}  // namespace
}  // namespace specfabric::scheduler
