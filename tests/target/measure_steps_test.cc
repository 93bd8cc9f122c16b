// What is measured of a group before it serves.

#include "target/measure_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "scheduler/step_profile.h"

namespace specfabric::target {
namespace {

scheduler::SchedulerOptions Options() {
  scheduler::SchedulerOptions options;
  options.kv_blocks = 1000;
  options.vocabulary = 50;
  return options;
}

// Waits as long as `time` says, the first step of a size ten times as long.
struct Fake {
  std::function<base::Nanos(int32_t rows)> time;
  int32_t last = 0;
  int steps = 0;
  absl::Status operator()(const scheduler::StepPlan& plan) {
    ++steps;
    const bool first = std::exchange(last, plan.rows()) != plan.rows();
    const base::Nanos takes = time(plan.rows()) * (first ? 10 : 1);
    std::this_thread::sleep_for(std::chrono::nanoseconds(takes));
    return absl::OkStatus();
  }
  ExecuteStep Execute() {
    return [this](const auto& plan, auto, StepTimes*, scheduler::StepResult*) {
      return (*this)(plan);
    };
  }
};

TEST(MeasureStepsTest, EndsWhereRowsCostWhatTheyCostInLargerSteps) {
  Fake fake{[](int32_t rows) { return std::max(8, rows) * 50 * base::kMicrosecond; }};
  const auto profile = MeasureSteps(Options(), fake.Execute(), 60 * base::kSecond);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->front().rows, 1);
  EXPECT_GE(profile->back().rows, 32);
  EXPECT_LE(profile->back().rows, 64);
  for (const scheduler::StepSample& step : *profile) {
    EXPECT_GE(step.time, fake.time(step.rows));
    EXPECT_LT(step.time, 10 * fake.time(step.rows)) << "the first of a size does not count";
    EXPECT_EQ(step.context, step.rows);
  }
}

TEST(MeasureStepsTest, SpansFewRowsAndManyBeforeItMeasuresThoseBetween) {
  Fake fake{[](int32_t) { return base::kMillisecond; }};
  // Of at least 12 ms each the ten powers of two, and not all of the sizes between them.
  const auto profile = MeasureSteps(Options(), fake.Execute(), 300 * base::kMillisecond);
  ASSERT_TRUE(profile.ok());
  EXPECT_TRUE(std::ranges::is_sorted(*profile, {}, &scheduler::StepSample::rows));
  std::vector<int32_t> rows;
  for (const scheduler::StepSample& step : *profile) rows.push_back(step.rows);
  EXPECT_THAT(rows, testing::IsSupersetOf({1, 2, 4, 8, 16, 32}));
  EXPECT_LT(rows.size(), scheduler::ProfileSizes(Options()).size());
}

TEST(MeasureStepsTest, EndsAfterItsBudget) {
  Fake fake{[](int32_t) { return 2 * base::kMillisecond; }};
  const auto profile = MeasureSteps(Options(), fake.Execute(), 30 * base::kMillisecond);
  ASSERT_TRUE(profile.ok());
  EXPECT_GE(profile->size(), 1u);
  EXPECT_LE(profile->size(), 3u);
}

TEST(MeasureStepsTest, StepThatFailsIsAnError) {
  const ExecuteStep broken = [](const auto&, auto, auto*, auto*) {
    return absl::InternalError("no device");
  };
  EXPECT_EQ(MeasureSteps(Options(), broken, base::kSecond).status().message(), "no device");
}

TEST(DescribeTest, NamesPowersOfFourAndTheLast) {
  std::vector<scheduler::StepSample> profile;
  for (const int32_t rows : {1, 2, 3, 4, 8, 16, 20}) {
    profile.push_back({rows, rows, rows * base::kMillisecond});
  }
  EXPECT_EQ(Describe(profile),
            "a step of 1 / 4 / 16 / 20 rows takes 1.00 / 4.00 / 16.00 / 20.00 ms");
}

}  // namespace
}  // namespace specfabric::target
