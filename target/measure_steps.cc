#include "target/measure_steps.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/step_profile.h"

namespace specfabric::target {
namespace {

using scheduler::StepSample;

constexpr int kRuns = 3;
// Rows cost the same from here on if a step of four times the rows takes nearly four times as long.
constexpr int32_t kStride = 4;
constexpr double kLinear = 0.9;

bool BoundByArithmetic(const std::vector<StepSample>& samples) {
  const StepSample& last = samples.back();
  for (const StepSample& sample : samples) {
    if (sample.rows * kStride < last.rows) continue;
    return sample.rows * kStride == last.rows &&
           static_cast<double>(last.time) > kLinear * kStride * static_cast<double>(sample.time);
  }
  return false;
}

bool IsPowerOf2(int32_t rows) { return std::has_single_bit(static_cast<uint32_t>(rows)); }

// number: of the last step.
absl::StatusOr<StepSample> Measure(const scheduler::SchedulerOptions& options,
                                   const ExecuteStep& execute, int32_t rows, uint64_t* number) {
  StepSample sample = {.rows = rows, .context = rows, .time = base::kForever};
  scheduler::StepResult result;
  for (int run = 0; run < kRuns; ++run) {
    const scheduler::StepPlan plan = scheduler::ProfileStep(options, rows, ++*number);
    const std::vector<const speculation::DraftProbs*> draft_probs(plan.sequences.size(), nullptr);
    StepTimes times;
    const base::Nanos began = base::Now();
    absl::Status executed = execute(plan, {.draft_probs = draft_probs}, &times, &result);
    if (!executed.ok()) return executed;
    sample.time = std::min(sample.time, base::Now() - began);
  }
  return sample;
}

}  // namespace

absl::StatusOr<std::vector<StepSample>> MeasureSteps(const scheduler::SchedulerOptions& options,
                                                     const ExecuteStep& execute,
                                                     base::Nanos budget) {
  const base::Nanos ends = base::Now() + budget;
  std::vector<int32_t> sizes = scheduler::ProfileSizes(options);
  const auto between = std::stable_partition(sizes.begin(), sizes.end(), IsPowerOf2);
  std::vector<StepSample> samples;
  int32_t most = std::numeric_limits<int32_t>::max();
  uint64_t number = 0;
  for (auto rows = sizes.begin(); rows != sizes.end() && base::Now() < ends; ++rows) {
    if (*rows > most) continue;
    auto sample = Measure(options, execute, *rows, &number);
    if (!sample.ok()) return sample.status();
    samples.push_back(*sample);
    if (rows < between && BoundByArithmetic(samples)) most = *rows;
  }
  std::ranges::sort(samples, {}, &StepSample::rows);
  return samples;
}

std::string Describe(absl::Span<const StepSample> profile) {
  std::string rows, times;
  for (size_t i = 0; i < profile.size(); ++i) {
    const bool power_of_4 = IsPowerOf2(profile[i].rows) &&
                            std::countr_zero(static_cast<uint32_t>(profile[i].rows)) % 2 == 0;
    if (!power_of_4 && i + 1 < profile.size()) continue;
    absl::StrAppend(&rows, rows.empty() ? "" : " / ", profile[i].rows);
    absl::StrAppendFormat(&times, "%s%.2f", times.empty() ? "" : " / ",
                          static_cast<double>(profile[i].time) / base::kMillisecond);
  }
  return absl::StrCat("a step of ", rows, " rows takes ", times, " ms");
}

}  // namespace specfabric::target
