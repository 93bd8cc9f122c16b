#include "scheduler/policy/step_time.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/scheduler/learned_step_time.h"

namespace specfabric::scheduler {
namespace {

// A GPU's: reading 20 ms of weights covers 333 rows of 60 us.
double Gpu(int32_t rows, int64_t context) {
  return 3e5 + std::max(2e7, 6e4 * rows) + 20.0 * context;
}
double Linear(int32_t rows, int64_t context) { return 1e6 + 2e5 * rows + 5.0 * context; }

TEST(StepTimeTest, LearnsFlatAndRisingRanges) {
  std::vector<int32_t> rows;
  for (int32_t r = 1; r <= 1000; r = r * 5 / 4 + 1) rows.push_back(r);
  for (const Curve& curve : {Curve(Gpu), Curve(Linear)}) {
    const StepTime time = Learned(curve, rows, 2000, 0.03);
    for (int32_t r : {1, 5, 64, 200, 700, 1000}) {
      for (int64_t context : {0, 10'000}) {
        EXPECT_NEAR(time.Predict(r, context) / curve(r, context), 1, 0.15) << r << " " << context;
      }
    }
  }
}

TEST(StepTimeTest, UnmeasuredSizesUseTheLowestRoofline) {
  const StepTime time = Learned(Gpu, {1, 128, 1024, 2048}, 500, 0.001);
  EXPECT_NEAR(time.Predict(512, 0) / Gpu(512, 0), 1, 0.05);
  EXPECT_NEAR(time.Predict(256, 0) / Gpu(256, 0), 1, 0.05);
  EXPECT_NEAR(time.Predict(24, 0) / Gpu(24, 0), 1, 0.05);
  // The cost of a row is unknown.
  const StepTime flat = Learned(Gpu, {64}, 500, 0);
  EXPECT_NEAR(flat.Predict(512, 0) / Gpu(64, 0), 1, 0.02);
}

// On a machine whose first steps map memory contexts grow while steps get faster, which no positive
// cost of a context explains.
TEST(StepTimeTest, SlowFirstStepsDoNotMakeContextsCheap) {
  struct Step {
    int32_t rows;
    int64_t context;
    double ms;
  };
  StepTime time;
  for (const Step& step : {Step{32, 32, 183.5}, Step{512, 544, 1633.2}, Step{512, 1036, 1091.9},
                           Step{512, 1548, 1099.6}, Step{512, 2060, 1131.8}, Step{147, 2207, 381.2},
                           Step{64, 2271, 180.2}, Step{64, 2335, 175.3}, Step{64, 2399, 183.5}}) {
    time.Observe(step.rows, step.context, static_cast<base::Nanos>(step.ms * 1e6));
  }
  EXPECT_NEAR(static_cast<double>(time.Predict(64, 2463)) / 1e6, 180, 10);
  EXPECT_NEAR(static_cast<double>(time.Predict(147, 2463)) / 1e6, 381, 20);
}

// Where long steps have errors of hundreds of milliseconds, a step of twice the rows still shows
// that rows cost time there.
TEST(StepTimeTest, LongStepsDoNotDominateShortOnes) {
  StepTime time;
  for (const double ms : {1777.1, 1176.7, 1220.8, 1465.1}) {
    time.Observe(512, 0, static_cast<base::Nanos>(ms * 1e6));
  }
  for (int i = 0; i < 60; ++i) time.Observe(32, 0, 80 * base::kMillisecond);
  time.Observe(54, 0, 144 * base::kMillisecond);
  EXPECT_GT(time.Predict(128, 0), 250 * base::kMillisecond);
  EXPECT_GT(time.Predict(384, 0), 700 * base::kMillisecond);
}

// The noise of a few steps of about the same size looks like a slope.
TEST(StepTimeTest, NoiseDoesNotMakeFewRowsFree) {
  StepTime time;
  for (const auto& [rows, ms] :
       {std::pair(64, 337.9), std::pair(512, 1717.3), std::pair(512, 1148.3),
        std::pair(512, 1149.8), std::pair(512, 1324.8), std::pair(435, 975.2)}) {
    time.Observe(rows, 0, static_cast<base::Nanos>(ms * 1e6));
  }
  EXPECT_NEAR(static_cast<double>(time.Predict(84, 0)) / 1e6, 214.6, 30);
}

TEST(StepTimeTest, ReachGrowsBySizesThatWereTried) {
  StepTime time;
  EXPECT_EQ(time.Reach(1), 32) << "a few rows take no time";
  EXPECT_EQ(time.Reach(20), 80);
  time.Observe(500, 0, base::kMillisecond);
  EXPECT_EQ(time.Reach(20), 80) << "500 rows say nothing about 100";
  time.Observe(80, 0, base::kMillisecond);
  EXPECT_EQ(time.Reach(20), 320);
  time.Observe(320, 0, base::kMillisecond);
  EXPECT_GE(time.Reach(20), 500);
  for (int i = 0; i < 3000; ++i) time.Observe(20, 0, base::kMillisecond);
  EXPECT_EQ(time.Reach(20), 80) << "the larger step is forgotten";
}

TEST(StepTimeTest, NeverFallsInRowsAndForgetsOldSteps) {
  StepTime time = Learned(Gpu, {1, 2, 3, 300, 900}, 300, 0.3);
  for (int32_t r = 1; r < 2000; ++r) ASSERT_LE(time.Predict(r, 0), time.Predict(r + 1, 0)) << r;
  for (int i = 0; i < 3000; ++i) time.Observe(10, 0, 2 * base::kMillisecond);
  EXPECT_NEAR(time.Predict(10, 0), 2e6, 2e5);
}

TEST(StepTimeTest, OneOutlierIsIgnored) {
  StepTime time = Learned(Linear, {10, 20, 30}, 200, 0.01);
  const base::Nanos before = time.Predict(20, 0);
  time.Observe(20, 0, 100 * before);
  EXPECT_EQ(time.Predict(20, 0), before);
}

// The first step of many sequences, beside their clients and a gateway at work.
TEST(StepTimeTest, OneOutlierOfANewSizeIsIgnored) {
  StepTime time;
  for (const int32_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 10}) {
    for (int i = 0; i < 2; ++i) time.Observe(rows, 0, Linear(rows, 0));
  }
  time.Observe(115, 0, 3 * Linear(115, 0));
  EXPECT_NEAR(static_cast<double>(time.Predict(115, 0)), Linear(115, 0), 0.1 * Linear(115, 0));
}

// Rows that were never tried may cost far more than expected.
TEST(StepTimeTest, RepeatedOutliersAreLearned) {
  StepTime time = Learned(Linear, {1, 2, 3}, 200, 0.01);
  const base::Nanos long_time = 20 * time.Predict(400, 0);
  for (int i = 0; i < 60; ++i) time.Observe(400, 0, long_time);
  EXPECT_NEAR(static_cast<double>(time.Predict(400, 0)), static_cast<double>(long_time),
              0.1 * static_cast<double>(long_time));
}

// A step of a size that was never tried is learned before the next regular solve.
TEST(StepTimeTest, SurprisingStepsAreLearnedAtOnce) {
  StepTime time = Learned([](int32_t rows, int64_t) { return 5e6 * rows; }, {8, 16, 32}, 300, 0);
  ASSERT_LT(time.Predict(1, 0), 10 * base::kMillisecond);
  time.Observe(1, 0, 40 * base::kMillisecond);
  EXPECT_GT(time.Predict(1, 0), 30 * base::kMillisecond);
}

}  // namespace
}  // namespace specfabric::scheduler
