#include "scheduler/simulation/step_cost.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"

namespace specfabric::scheduler {

base::Nanos Interpolate(absl::Span<const PassTime> measured, int64_t rows) {
  const auto more = std::find_if(measured.begin(), measured.end(),
                                 [rows](const PassTime& pass) { return pass.rows >= rows; });
  if (more == measured.begin()) return more->time;
  const PassTime& least = *(more - 1);
  if (more == measured.end()) {
    return static_cast<base::Nanos>(static_cast<double>(least.time) * static_cast<double>(rows) /
                                    static_cast<double>(least.rows));
  }
  const double part =
      static_cast<double>(rows - least.rows) / static_cast<double>(more->rows - least.rows);
  return least.time + static_cast<base::Nanos>(part * static_cast<double>(more->time - least.time));
}

base::Nanos StepCost::Of(const StepPlan& plan) const {
  double context = 0;
  for (const PlanSequence& part : plan.sequences) context += part.kv_len + part.row_count;
  const base::Nanos pass = measured.empty()
                               ? std::max(weights, static_cast<base::Nanos>(row_ns * plan.rows()))
                               : Interpolate(measured, plan.rows());
  return fixed + pass + static_cast<base::Nanos>(context_ns * context);
}

double StepNoise::Factor(base::Nanos now, uint64_t seed) const {
  // In [-1, 1), keyed by kind and number.
  const auto random = [seed](uint64_t kind, base::Nanos number) {
    const uint64_t bits =
        base::Mix64(seed ^ base::Mix64(kind ^ base::Mix64(static_cast<uint64_t>(number))));
    return 2 * (static_cast<double>(bits >> 11) * 0x1p-53) - 1;
  };
  const base::Nanos number = now / period;
  const double passed = static_cast<double>(now % period) / static_cast<double>(period);
  const double pace = (1 - passed) * random(0, number) + passed * random(0, number + 1);
  return std::pow(drift, pace) * std::pow(jitter, random(1, now));
}

}  // namespace specfabric::scheduler
