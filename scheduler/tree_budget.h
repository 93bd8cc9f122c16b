#ifndef SPECFABRIC_SCHEDULER_TREE_BUDGET_H_
#define SPECFABRIC_SCHEDULER_TREE_BUDGET_H_

// How many guesses of which sequences a step verifies, none included: as many as maximise the
// expected tokens a second,
//   (sum over sequences of value * (1 + expected accepted guesses)) / (delay + time(rows,
//   context)),
// after TurboSpec (arXiv 2406.14066) and AdaServe (arXiv 2501.12162). A guess is worth the chance
// that its whole path is accepted, so the best are taken first. A child is never worth more than
// its parent: whatever is above some worth is a subtree of every tree. Pure.
//
// Worths are sorted by buckets of a quarter of an octave, so that sharing takes time in proportion
// to the guesses and allocates nothing.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/step_time.h"

namespace specfabric::scheduler {

constexpr int kWorthBuckets = 64;
// Ascending in worth; from 2^-11 to 2^5, what is beyond is in the first or last.
int WorthBucket(float worth);

// How many guesses there are of which worth; of many rounds on average, or of one step.
struct Worths {
  std::array<double, kWorthBuckets> count = {};
  std::array<double, kWorthBuckets> sum = {};
  double all = 0;  // guesses
  void Add(float worth) {
    const int bucket = WorthBucket(worth);
    count[bucket] += 1;
    sum[bucket] += worth;
    all += 1;
  }
  void Add(const Worths& other, double times);
};

// A step without its guesses.
struct StepBase {
  double tokens = 0;      // it yields, each as valuable as its sequence, and rows of prompts
  double rows = 0;        // fractional where rows are expected, not planned
  int64_t context = 0;    // see StepTime
  base::Nanos delay = 0;  // before it can start
  int32_t max_rows = 0;
};

// What is taken: all guesses of the buckets above `bucket`, and of that one the first `partly`.
struct Cut {
  int bucket = kWorthBuckets;
  int32_t partly = 0;
  double guesses = 0;  // taken
  double tokens = 0;   // expected in all
  double rate = 0;     // tokens a nanosecond
};

// No more than StepTime::Reach. all: as many as max_rows allows, whatever they cost.
Cut ShareRows(const Worths& worths, const StepBase& base, const StepTime& time, bool all = false);

// The nodes of one tree that the cut takes, ascending. worth: [nodes - 1], of nodes 1.., times
// `value`, as given to Worths. left: of cut.partly, counted down from tree to tree.
void TakeNodes(const Cut& cut, absl::Span<const float> worth, float value, int32_t* left,
               std::vector<int32_t>* nodes);

// Makes the worths of nodes in draw order, of which only the first ones may be taken, never rise:
// each becomes the mean of those it is best taken together with.
void LevelInDrawOrder(absl::Span<float> worth);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_TREE_BUDGET_H_
