#include "scheduler/tree_budget.h"

#include <algorithm>
#include <bit>

namespace specfabric::scheduler {
namespace {

constexpr uint32_t kShift = 21;  // two bits of a float's mantissa stay: quarters of an octave
constexpr uint32_t kLowest = (127 - 11) << (23 - kShift);  // 2^-11

}  // namespace

int WorthBucket(float worth) {
  if (!(worth > 0)) return 0;
  const uint32_t place = std::bit_cast<uint32_t>(worth) >> kShift;
  if (place <= kLowest) return 0;
  return static_cast<int>(std::min<uint32_t>(place - kLowest, kWorthBuckets - 1));
}

void Worths::Add(const Worths& other, double times) {
  if (other.all == 0) return;
  all += times * other.all;
  for (int b = 0; b < kWorthBuckets; ++b) {
    count[b] += times * other.count[b];
    sum[b] += times * other.sum[b];
  }
}

Cut ShareRows(const Worths& worths, const StepBase& base, const StepTime& time, bool all) {
  const auto rate = [&](double tokens, double guesses) {
    const auto rows = static_cast<int32_t>(base.rows + guesses + 0.5);
    return tokens / static_cast<double>(base.delay + time.Predict(rows, base.context));
  };
  Cut best = {.tokens = base.tokens, .rate = rate(base.tokens, 0)};
  const auto rows = static_cast<int32_t>(base.rows + 0.5);
  const int32_t most = all ? base.max_rows : std::min(base.max_rows, time.Reach(rows));
  double tokens = base.tokens, guesses = 0;
  for (int b = kWorthBuckets - 1; b >= 0; --b) {
    if (worths.count[b] == 0) continue;
    const double room = std::max(0.0, most - base.rows - guesses);
    const double taken = std::min(room, worths.count[b]);
    tokens += worths.sum[b] * (taken / worths.count[b]);
    guesses += taken;
    const bool whole = taken == worths.count[b];
    const double now = rate(tokens, guesses);
    if (all || now > best.rate) {
      best = {.bucket = whole ? b - 1 : b,
              .partly = whole ? 0 : static_cast<int32_t>(taken),
              .guesses = guesses,
              .tokens = tokens,
              .rate = now};
    }
    if (!whole) break;
  }
  return best;
}

void TakeNodes(const Cut& cut, absl::Span<const float> worth, float value, int32_t* left,
               std::vector<int32_t>* nodes) {
  nodes->clear();
  for (size_t i = 0; i < worth.size(); ++i) {
    const int bucket = WorthBucket(value * worth[i]);
    if (bucket < cut.bucket || (bucket == cut.bucket && *left == 0)) continue;
    if (bucket == cut.bucket) --*left;
    nodes->push_back(static_cast<int32_t>(i) + 1);
  }
}

void LevelInDrawOrder(absl::Span<float> worth) {
  for (size_t first = 0; first < worth.size();) {
    // The prefix of the highest mean.
    double sum = 0, best = -1;
    size_t end = first + 1;
    for (size_t i = first; i < worth.size(); ++i) {
      sum += worth[i];
      const double mean = sum / static_cast<double>(i - first + 1);
      if (mean >= best) {
        best = mean;
        end = i + 1;
      }
    }
    std::fill(worth.begin() + first, worth.begin() + end, static_cast<float>(best));
    first = end;
  }
}

}  // namespace specfabric::scheduler
