#ifndef SPECFABRIC_SCHEDULER_POLICY_TREE_BUDGET_H_
#define SPECFABRIC_SCHEDULER_POLICY_TREE_BUDGET_H_

// How many draft tokens of which sequences a step verifies, none included: as many as maximise the
// expected tokens a second,
//   (sum over sequences of value * (1 + expected accepted draft tokens)) / (delay + time(rows,
//   context)),
// after TurboSpec (arXiv 2406.14066) and AdaServe (arXiv 2501.12162). A guess is expected_gain the
// chance that its whole path is accepted, so the best are taken first. A child is never
// expected_gain more than its parent: whatever is above some gain is a subtree of every
// tree. Pure.
//
// Gains are sorted by buckets of a quarter of an octave, so that sharing takes time in
// proportion to the draft tokens and allocates nothing.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/policy/step_time.h"

namespace specfabric::scheduler {

constexpr int kGainBuckets = 64;
// Ascending in gain; from 2^-11 to 2^5, what is beyond is in the first or last.
int GainBucket(float expected_gain);

// How many draft tokens there are of which expected gain; of many rounds on average, or of one
// step.
struct GainHistogram {
  std::array<double, kGainBuckets> count = {};
  std::array<double, kGainBuckets> sum = {};
  double all = 0;  // draft tokens
  void Add(float expected_gain) {
    const int bucket = GainBucket(expected_gain);
    count[bucket] += 1;
    sum[bucket] += expected_gain;
    all += 1;
  }
  void Add(const GainHistogram& other, double times);
};

// A step without its draft tokens.
struct StepBase {
  double tokens = 0;      // it yields, each as valuable as its sequence, and rows of prompts
  double rows = 0;        // fractional where rows are expected, not planned
  int64_t context = 0;    // see StepTime
  base::Nanos delay = 0;  // before it can start
  int32_t max_rows = 0;
};

// What is taken: all draft tokens of the buckets above `bucket`, and of that one the first
// `partial`.
struct RowAllocation {
  int bucket = kGainBuckets;
  int32_t partial = 0;
  double draft_tokens = 0;  // taken
  double tokens = 0;        // expected in all
  double rate = 0;          // tokens a nanosecond
};

// No more than StepTime::Reach. all: as many as max_rows allows, whatever they cost.
RowAllocation AllocateRows(const GainHistogram& gains, const StepBase& base, const StepTime& time,
                           bool all = false);

// The nodes of one tree that the allocation takes, ascending. expected_gain: [nodes - 1], of
// nodes 1.., times `value`, as given to GainHistogram. left: of allocation.partial, counted down
// from tree to tree.
void SelectNodes(const RowAllocation& allocation, absl::Span<const float> expected_gain,
                 float value, int32_t* left, std::vector<int32_t>* nodes);

// Makes the gains of nodes in draw order, of which only the first ones may be taken, never rise:
// each becomes the mean of those it is best taken together with.
void MakeNonIncreasing(absl::Span<float> expected_gain);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_TREE_BUDGET_H_
