#ifndef SPECFABRIC_SCHEDULER_STEP_TIME_H_
#define SPECFABRIC_SCHEDULER_STEP_TIME_H_

// How long a step will take, learned from the steps so far:
//   time = f(rows) + context * c,
// f piecewise linear between powers of two, so that it can be flat while reading the weights bounds
// a step and rise once arithmetic does; c the time to read one token's KV. Fitted by least squares
// with old steps forgotten, and with a weak preference for f that is straight, which is what it is
// taken to be where no step has been yet. One thread.

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace specfabric::scheduler {

class StepTime {
 public:
  // rows: of the step; context: tokens whose KV it reads, over all sequences.
  void Observe(int32_t rows, int64_t context, base::Nanos time);
  // Never negative, never falling in rows. 0 before the first observation.
  base::Nanos Predict(int32_t rows, int64_t context) const;
  bool known() const { return steps_ > 0; }

 private:
  static constexpr int kKnots = 12;  // f at 1, 2, 4, ..., 2048 rows
  static constexpr int kSize = kKnots + 1;
  // What is solved for: f at the knots in microseconds, c in microseconds a 1,000 tokens.
  using Vector = std::array<double, kSize>;
  struct Place {
    int knot = 0;
    double above = 0;  // share of the knot after it
  };
  static Place At(int32_t rows);
  void Solve();

  std::array<Vector, kSize> normal_ = {};  // sum of x x', weighted
  Vector right_ = {};                      // sum of x time
  Vector fit_ = {};
  double scale_ = 0;  // smoothed time of a step, which the preference is relative to
  int64_t steps_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_STEP_TIME_H_
