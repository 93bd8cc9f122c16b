#ifndef SPECFABRIC_TESTS_SCHEDULER_LEARNED_STEP_TIME_H_
#define SPECFABRIC_TESTS_SCHEDULER_LEARNED_STEP_TIME_H_

// A StepTime that has learned from steps of a known curve.

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "scheduler/policy/step_time.h"

namespace specfabric::scheduler {

using Curve = std::function<double(int32_t rows, int64_t context)>;  // ns

// noise: standard deviation of a step's time, relative to it.
inline StepTime Learned(const Curve& curve, const std::vector<int32_t>& rows, int steps,
                        double noise) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, noise);
  StepTime time;
  for (int i = 0; i < steps; ++i) {
    const int32_t r = rows[random() % rows.size()];
    const int64_t context = random() % 20'000;
    time.Observe(r, context, static_cast<base::Nanos>(curve(r, context) * (1 + normal(random))));
  }
  return time;
}

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_TESTS_SCHEDULER_LEARNED_STEP_TIME_H_
