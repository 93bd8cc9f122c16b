#include "scheduler/policy/draft_wait.h"

#include <vector>

#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;

constexpr MissLimits kLimits = {.max_misses = 2, .probe_rounds = 3};
const DraftOrder kOrder = {
    .ask = true, .max_nodes = 8, .max_depth = 4, .reply_timeout = 50 * kMillisecond};

TEST(DraftWaitTest, RepliesEndTheWaitAndHaveALatency) {
  DraftWait wait;
  ASSERT_TRUE(wait.StartRound(kOrder, 1000));
  EXPECT_TRUE(wait.waiting());
  EXPECT_EQ(wait.deadline(), 1000 + 50 * kMillisecond);
  EXPECT_EQ(wait.order().max_depth, 4);
  EXPECT_EQ(wait.OnReply(1000 + 4 * kMillisecond), 4 * kMillisecond);
  EXPECT_FALSE(wait.waiting());
  EXPECT_TRUE(wait.asked());
  wait.EndRound();
  EXPECT_FALSE(wait.asked());
  EXPECT_TRUE(wait.StartRound(kOrder, 0));
  EXPECT_EQ(wait.round(), 2u);
}

TEST(DraftWaitTest, CaughtUpOnceTwoRoundsInARowAsked) {
  DraftWait wait;
  for (const bool ask : {true, true, false, true, true})
    wait.StartRound(ask ? kOrder : DraftOrder{}, 0);
  EXPECT_FALSE(wait.CaughtUp(1));
  EXPECT_TRUE(wait.CaughtUp(2));
  EXPECT_FALSE(wait.CaughtUp(4));
  EXPECT_TRUE(wait.CaughtUp(5));
}

TEST(DraftWaitTest, AsksNothingWithoutAnOrder) {
  DraftWait wait;
  EXPECT_FALSE(wait.StartRound({}, 0));
  EXPECT_FALSE(wait.waiting());
  EXPECT_EQ(wait.round(), 1u);
}

TEST(DraftWaitTest, StopsAskingAfterMissesAndProbesAtDoublingIntervals) {
  DraftWait wait;
  std::vector<int> asked;
  for (int round = 1; round <= 50; ++round) {
    if (wait.StartRound(kOrder, 0)) {
      asked.push_back(round);
      wait.OnMiss(0, kLimits);
    }
    wait.EndRound();
  }
  EXPECT_EQ(asked, (std::vector<int>{1, 2, 6, 13, 26}));
  // A reply to a probe ends it.
  while (!wait.StartRound(kOrder, 0)) {
  }
  wait.OnReply(0);
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(wait.StartRound(kOrder, 0));
    wait.OnReply(0);
  }
}

TEST(DraftWaitTest, AReplyResetsTheMisses) {
  DraftWait wait;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(wait.StartRound(kOrder, 0));
    wait.OnMiss(0, kLimits);
    EXPECT_TRUE(wait.StartRound(kOrder, 0));
    wait.OnReply(0);
  }
}

TEST(DraftWaitTest, UnavailableAndSkippedDraftsAreNoMisses) {
  DraftWait wait;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(wait.StartRound(kOrder, 0));
    wait.OnUnavailable();
    EXPECT_FALSE(wait.waiting());
    EXPECT_TRUE(wait.StartRound(kOrder, 0));
    EXPECT_EQ(wait.OnSkipped(7), 7);
    EXPECT_FALSE(wait.waiting());
  }
}

TEST(DraftWaitTest, ReportsTheLatencyOfARecentStaleReplyOnce) {
  DraftWait wait;
  EXPECT_TRUE(wait.StartRound(kOrder, 1 * kMillisecond));
  wait.OnMiss(2 * kMillisecond, kLimits);
  EXPECT_TRUE(wait.StartRound(kOrder, 3 * kMillisecond));
  EXPECT_EQ(wait.OnSkipped(4 * kMillisecond), 1 * kMillisecond);
  EXPECT_EQ(wait.waited(), 1 * kMillisecond);
  EXPECT_FALSE(wait.StartRound({}, 5 * kMillisecond));
  EXPECT_EQ(wait.OnStaleReply(1, 9 * kMillisecond), 8 * kMillisecond);
  EXPECT_FALSE(wait.OnStaleReply(1, 9 * kMillisecond)) << "reported once";
  EXPECT_EQ(wait.OnStaleReply(2, 9 * kMillisecond), 6 * kMillisecond);
  EXPECT_FALSE(wait.OnStaleReply(3, 9 * kMillisecond)) << "round 3 did not ask";
  EXPECT_FALSE(wait.OnStaleReply(4, 9 * kMillisecond)) << "round 4 has not started";
  EXPECT_TRUE(wait.StartRound(kOrder, 10 * kMillisecond));
  for (int i = 0; i < 8; ++i) wait.StartRound({}, 0);
  EXPECT_FALSE(wait.OnStaleReply(4, 20 * kMillisecond)) << "too long ago";
}

}  // namespace
}  // namespace specfabric::scheduler
