#include "link/backoff.h"

#include <set>

#include "gtest/gtest.h"

namespace specfabric::link {
namespace {

TEST(BackoffTest, DoublesUpToTheMaximumAndSpreads) {
  std::set<base::Nanos> firsts;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Backoff backoff(100, 1000, seed);
    base::Nanos expected = 100;
    for (int i = 0; i < 10; ++i) {
      const base::Nanos wait = backoff.Next();
      EXPECT_GE(wait, expected / 2);
      EXPECT_LT(wait, expected / 2 + expected);
      if (i == 0) firsts.insert(wait);
      expected = std::min<base::Nanos>(2 * expected, 1000);
    }
    backoff.Reset();
    EXPECT_LT(backoff.Next(), 150);
  }
  EXPECT_GT(firsts.size(), 20u);
}

TEST(BackoffTest, InvalidLimitsAreClamped) {
  Backoff zero(0, 0, 1);
  EXPECT_GE(zero.Next(), 0);
  Backoff inverted(1000, 10, 1);
  for (int i = 0; i < 5; ++i) EXPECT_LT(inverted.Next(), 1500);
}

}  // namespace
}  // namespace specfabric::link
