#include "speculation/calibrated_chance.h"

#include <limits>

#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

TEST(CalibratedChanceTest, BelievesWhatIsSaidUntilItHasSeenSome) {
  const CalibratedChance chance;
  EXPECT_FLOAT_EQ(chance.Of(.25f), .25f);
  EXPECT_FLOAT_EQ(chance.Of(.9f), .9f);
}

TEST(CalibratedChanceTest, LearnsHowOftenItComesTrue) {
  CalibratedChance chance;
  // Where .9 is said, every second token is accepted; where .3 is, all are.
  for (int i = 0; i < 4000; ++i) {
    chance.Observe(.9f, i % 2 == 0);
    chance.Observe(.3f, true);
  }
  EXPECT_NEAR(chance.Of(.9f), .5f, .02f);
  EXPECT_NEAR(chance.Of(.3f), 1.0f, .02f);
  EXPECT_FLOAT_EQ(chance.Of(.6f), .6f);
  // What has changed counts more than what was.
  for (int i = 0; i < 4000; ++i) chance.Observe(.9f, true);
  EXPECT_GT(chance.Of(.9f), .97f);
}

TEST(CalibratedChanceTest, IsNeverCertain) {
  CalibratedChance chance;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float said :
       {0.0f, 1.0f, -1.0f, 7.0f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (int i = 0; i < 9000; ++i) chance.Observe(said, i > 5000);
    EXPECT_GT(chance.Of(said), 0);
    EXPECT_LT(chance.Of(said), 1);
  }
}

}  // namespace
}  // namespace specfabric::speculation
