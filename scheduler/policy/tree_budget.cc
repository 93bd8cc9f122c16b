#include "scheduler/policy/tree_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specfabric::scheduler {
namespace {

constexpr uint32_t kShift = 21;  // two bits of a float's mantissa stay: quarters of an octave
constexpr uint32_t kLowest = (127 - 11) << (23 - kShift);  // 2^-11

// What a step is expected to yield must rise by so much for each time of the step without draft
// tokens that these take: of many sizes the best is one whose time was underestimated, the more so
// the further it is from the sizes that steps have.
constexpr double kRisk = 0.02;

}  // namespace

int GainBucket(float expected_gain) {
  if (!(expected_gain > 0)) return 0;
  const uint32_t place = std::bit_cast<uint32_t>(expected_gain) >> kShift;
  if (place <= kLowest) return 0;
  return static_cast<int>(std::min<uint32_t>(place - kLowest, kGainBuckets - 1));
}

void GainHistogram::Add(const GainHistogram& other, double times) {
  if (other.all == 0) return;
  all += times * other.all;
  for (int b = 0; b < kGainBuckets; ++b) {
    count[b] += times * other.count[b];
    sum[b] += times * other.sum[b];
  }
}

void GainHistogram::MoveTo(const GainHistogram& other, double share) {
  if (all == 0 && other.all == 0) return;
  all += share * (other.all - all);
  for (int b = 0; b < kGainBuckets; ++b) {
    count[b] += share * (other.count[b] - count[b]);
    sum[b] += share * (other.sum[b] - sum[b]);
  }
}

RowAllocation AllocateRows(const GainHistogram& gains, const StepBase& base, const StepTime& time,
                           bool all) {
  const auto with = [&](double draft_tokens) {
    const auto rows = static_cast<int32_t>(std::lround(base.rows + draft_tokens));
    return static_cast<double>(base.delay + time.Predict(rows, base.context));
  };
  const double without = with(0);
  RowAllocation best = {.tokens = base.tokens, .rate = base.tokens / without};
  double best_value = best.rate;
  const auto rows = static_cast<int32_t>(std::lround(base.rows));
  const int32_t most = all ? base.max_rows : std::min(base.max_rows, time.Reach(rows));
  double tokens = base.tokens, draft_tokens = 0;
  for (int b = kGainBuckets - 1; b >= 0; --b) {
    if (gains.count[b] == 0) continue;
    const double room = std::max(0.0, most - base.rows - draft_tokens);
    const double taken = std::min(room, gains.count[b]);
    tokens += gains.sum[b] * (taken / gains.count[b]);
    draft_tokens += taken;
    const bool whole = taken == gains.count[b];
    const double takes = with(draft_tokens);
    const double value = tokens / takes / (1 + kRisk * (takes / without - 1));
    if (all || value > best_value) {
      best_value = value;
      best = {.bucket = whole ? b - 1 : b,
              .partial = whole ? 0 : static_cast<int32_t>(taken),
              .draft_tokens = draft_tokens,
              .tokens = tokens,
              .rate = tokens / takes};
    }
    if (!whole) break;
  }
  return best;
}

void SelectNodes(const RowAllocation& allocation, absl::Span<const float> expected_gain,
                 float value, int32_t* left, std::vector<int32_t>* nodes) {
  nodes->clear();
  for (size_t i = 0; i < expected_gain.size(); ++i) {
    const int bucket = GainBucket(value * expected_gain[i]);
    if (bucket < allocation.bucket || (bucket == allocation.bucket && *left == 0)) continue;
    if (bucket == allocation.bucket) --*left;
    nodes->push_back(static_cast<int32_t>(i) + 1);
  }
}

void MakeNonIncreasing(absl::Span<float> expected_gain) {
  for (size_t first = 0; first < expected_gain.size();) {
    // The run from `first` with the highest mean.
    double sum = 0, best = -1;
    size_t end = first + 1;
    for (size_t i = first; i < expected_gain.size(); ++i) {
      sum += expected_gain[i];
      const double mean = sum / static_cast<double>(i - first + 1);
      if (mean >= best) {
        best = mean;
        end = i + 1;
      }
    }
    std::fill(expected_gain.begin() + first, expected_gain.begin() + end, static_cast<float>(best));
    first = end;
  }
}

}  // namespace specfabric::scheduler
