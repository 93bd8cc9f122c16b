// What replies take, by depth and load.

#include "scheduler/policy/reply_time.h"
#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

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

}  // namespace
}  // namespace specfabric::scheduler
