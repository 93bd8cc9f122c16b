#ifndef SPECFABRIC_SCHEDULER_POLICY_STEP_TIME_H_
#define SPECFABRIC_SCHEDULER_POLICY_STEP_TIME_H_

// How long a step will take, learned from the steps so far:
//   time = f(rows) + context * c,
// f piecewise linear, with four knots an octave, so that it can be flat while reading the weights
// bounds a step and rise once arithmetic does; c the time to read one token's KV. Fitted by least
// squares of relative errors; old steps decay. At sizes that were never measured f is the lowest of
// the rooflines, fixed + slope * max(rows, knee), that fit the others, so that these sizes are
// tried. Owned by GoodputControl; one thread; allocates nothing.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace specfabric::scheduler {

// A step that ran.
struct StepSample {
  int32_t rows = 0;
  int64_t context = 0;  // tokens whose KV it read, over all sequences
  base::Nanos time = 0;
};

class StepTime {
 public:
  // rows: of the step; context: tokens whose KV it reads, over all sequences.
  void Observe(int32_t rows, int64_t context, base::Nanos time);
  // At least 1, never falling in rows. kUnknown, whatever the rows, before the first observation.
  static constexpr base::Nanos kUnknown = base::kMillisecond;
  base::Nanos Predict(int32_t rows, int64_t context) const;
  bool known() const { return steps_ > 0; }
  // The most rows to try in a step that has `rows` without draft tokens. Sizes are tried one after
  // the other, each at most four times the one before: such a step shows where arithmetic begins to
  // bound the time, and costs less than a larger one.
  int32_t Reach(int32_t rows) const;
  // The sizes at which f is known by itself, ascending, up to `most` rows.
  static std::vector<int32_t> Sizes(int32_t most);
  // How many steps of about so many rows are remembered. Each counts 1 at first and decays.
  double Known(int32_t rows) const;

 private:
  static constexpr int kKnots = 40;  // f at 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ..., 2048
  using Knots = std::array<double, kKnots>;
  // The unknowns: f at the knots in seconds, c in seconds for 1,000 tokens.
  struct Vector {
    Knots f = {};
    double c = 0;
  };
  // The normal matrix, sums of x x' / time^2. A step lies between two knots, so that only
  // neighbours and c have common terms.
  struct Matrix {
    Knots f_f = {}, f_next = {}, f_c = {};
    double c_c = 0;
    Vector Times(const Vector& v) const;
    // Solves for v in place; the matrix must be positive definite.
    void Solve(Vector* v) const;
  };
  struct Roofline {
    double fixed = 0, slope = 0, knee = 0, context = 0;
    double squared_error = 0;  // sum of squares of relative errors
    double At(double rows) const;
  };
  struct Place {
    int knot = 0;
    double above = 0;  // share of the next knot, in [0, 1]
  };

  static double RowsAt(int knot);
  static Place At(int32_t rows);
  static int IntervalOf(Place place) { return std::min(place.knot, kKnots - 2); }
  // Over all steps that are remembered.
  struct Sums {
    Matrix normal;
    Vector right;                   // the right side: sums of x / time
    double square = 0, weight = 0;  // sums of squared relative times, and of steps
  };
  Sums AddUp() const;
  // The one with this knee that fits best.
  Roofline FitRoofline(const Sums& sums, double knee) const;
  // At every knot the lowest of the rooflines that fit about as well as the best one.
  Vector LowestRoofline(const Sums& sums) const;
  void Solve();

  // Sums over the steps between a knot and the next. They decay quickly with steps of their own
  // size and slowly with others: the last few steps of a size tell what it takes, however long ago
  // they were.
  struct Interval {
    double f_f = 0, f_next = 0, next_next = 0, f_c = 0, next_c = 0, c_c = 0;
    double f_time = 0, next_time = 0, c_time = 0;
    double square = 0, weight = 0;
    void Forget(double share);
  };
  std::array<Interval, kKnots - 1> intervals_ = {};
  Vector fit_;
  double scale_ = 0;  // smoothed time of a step, in seconds
  int64_t steps_ = 0;
  int held_up_ = 0;  // steps in a row that took far longer than expected
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_STEP_TIME_H_
