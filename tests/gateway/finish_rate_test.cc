#include "gateway/finish_rate.h"

#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using base::kMillisecond;
using base::kSecond;

TEST(FinishRateTest, FollowsTheRecentRate) {
  FinishRate rate;
  base::Nanos now = 5 * kSecond;
  rate.Begin(now);
  for (int i = 0; i < 400; ++i) rate.Finish(now += 100 * kMillisecond);  // 10 a second
  EXPECT_NEAR(rate.SecondsUntilDone(200, now), 20, 1);
  for (int i = 0; i < 50; ++i) rate.Finish(now += kSecond);
  EXPECT_NEAR(rate.SecondsUntilDone(20, now), 20, 3);
}

TEST(FinishRateTest, IsUsableFromTheFirstSecondOn) {
  FinishRate rate;
  base::Nanos now = 0;
  rate.Begin(now);
  for (int i = 0; i < 10; ++i) rate.Finish(now += 100 * kMillisecond);
  EXPECT_NEAR(rate.SecondsUntilDone(100, now), 9, 2);
}

TEST(FinishRateTest, StaysWithinItsLimits) {
  FinishRate rate;
  rate.Begin(0);
  EXPECT_EQ(rate.SecondsUntilDone(1000, 0), 1);              // nothing is known
  EXPECT_EQ(rate.SecondsUntilDone(1000, 30 * kSecond), 60);  // nothing finishes
  base::Nanos now = 30 * kSecond;
  for (int i = 0; i < 1000; ++i) rate.Finish(now += kMillisecond);
  EXPECT_EQ(rate.SecondsUntilDone(1, now), 1);
}

TEST(FinishRateTest, ForgetsTheRateAfterAnIdleTime) {
  FinishRate rate;
  base::Nanos now = 0;
  rate.Begin(now);
  for (int i = 0; i < 100; ++i) rate.Finish(now += 10 * kMillisecond);
  now += 3600 * kSecond;
  rate.Begin(now);
  for (int i = 0; i < 20; ++i) rate.Finish(now += kSecond);
  EXPECT_NEAR(rate.SecondsUntilDone(10, now), 10, 2);
}

}  // namespace
}  // namespace specfabric::gateway
