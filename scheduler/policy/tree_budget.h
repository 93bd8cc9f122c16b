#ifndef SPECFABRIC_SCHEDULER_POLICY_TREE_BUDGET_H_
#define SPECFABRIC_SCHEDULER_POLICY_TREE_BUDGET_H_

// How many draft tokens of which sequences a step verifies, if any: as many as maximise the
// expected tokens a second,
//   (sum over sequences of value * (1 + expected accepted draft tokens)) / (delay + time(rows,
//   context)),
// less a margin for what they add to the step's time (kRisk in tree_budget.cc), after TurboSpec
// (arXiv 2406.14066) and AdaServe (arXiv 2501.12162). The expected gain of a draft token is the
// chance that its whole path is accepted, times its sequence's value; the highest are taken first.
// A child's is never more than its parent's, so that the nodes above any gain form a subtree. Pure.
//
// Gains are sorted into buckets of a quarter of an octave, so that the allocation takes time in
// proportion to the draft tokens and allocates no memory.

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/policy/step_time.h"

namespace specfabric::scheduler {

constexpr int kGainBuckets = 64;
// Ascending in gain, from 2^-11 to 2^5; smaller and larger gains are in the first and last bucket.
int GainBucket(float expected_gain);

// How many draft tokens there are of each expected gain, in one step or on average over rounds.
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
  // By so much of the way.
  void MoveTo(const GainHistogram& other, double share);
  double Sum() const { return std::accumulate(sum.begin(), sum.end(), 0.0); }
};

// A step without its draft tokens.
struct StepBase {
  double tokens = 0;      // output tokens, each times its sequence's value, and prefill rows
  double rows = 0;        // fractional where rows are expected, not planned
  int64_t context = 0;    // see StepTime
  base::Nanos delay = 0;  // before it can start
  int32_t max_rows = 0;
};

// The draft tokens that are taken: all of the buckets above `bucket`, and the first `partial` of
// `bucket`.
struct RowAllocation {
  int bucket = kGainBuckets;
  int32_t partial = 0;
  double draft_tokens = 0;  // taken
  double tokens = 0;        // expected, those of StepBase included
  double rate = 0;          // tokens a nanosecond
};

// Takes rows up to StepTime::Reach. all: as many as max_rows allows, whatever they cost.
RowAllocation AllocateRows(const GainHistogram& gains, const StepBase& base, const StepTime& time,
                           bool all = false);

// The nodes of one tree that the allocation takes, ascending. expected_gain: [nodes - 1], of nodes
// 1..; times `value` it is what was added to the GainHistogram. left: what is left of
// allocation.partial, counted down from tree to tree.
void SelectNodes(const RowAllocation& allocation, absl::Span<const float> expected_gain,
                 float value, int32_t* left, std::vector<int32_t>* nodes);

// For nodes in draw order, of which only a prefix may be taken: replaces the gains by the nearest
// sequence that never rises, so that the highest are a prefix. A run that rises becomes its mean.
void MakeNonIncreasing(absl::Span<float> expected_gain);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_TREE_BUDGET_H_
