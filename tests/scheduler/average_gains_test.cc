// What trees of one mode are expected to gain, as seen by those of the other.

#include "scheduler/policy/average_gains.h"

#include <gtest/gtest.h>

namespace specfabric::scheduler {
namespace {

void AddTrees(int32_t trees, float gain, AverageGains* gains) {
  GainHistogram tree;
  tree.Add(gain);
  for (int32_t i = 0; i < trees; ++i) gains->Add(tree);
}

TEST(AverageGainsTest, FewTreesAreExpectedToGainWhatOthersDo) {
  AverageGains few(32), others(32);
  AddTrees(1, 0.2f, &few);
  AddTrees(100, 0.8f, &others);
  EXPECT_NEAR(few.LikeThose(others).Sum(), 0.8, 0.03);
}

TEST(AverageGainsTest, ManyDifferByWhatTheyUsuallyDo) {
  AverageGains many(32), others(32);
  AddTrees(1000, 0.4f, &many);
  AddTrees(1000, 0.8f, &others);
  EXPECT_NEAR(many.LikeThose(others).Sum(), 0.4, 0.02);
  // The text at hand gains the other mode half.
  AddTrees(100, 0.4f, &others);
  EXPECT_NEAR(many.LikeThose(others).Sum(), 0.2, 0.06);
}

TEST(AverageGainsTest, WhereNothingIsKnownTheOthersTell) {
  AverageGains none(32), others(32);
  AddTrees(3, 0.8f, &others);
  EXPECT_NEAR(none.LikeThose(others).Sum(), 0.8, 0.01);
}

}  // namespace
}  // namespace specfabric::scheduler
