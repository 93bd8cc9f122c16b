#ifndef SPECFABRIC_SCHEDULER_POLICY_STEP_TIME_H_
#define SPECFABRIC_SCHEDULER_POLICY_STEP_TIME_H_

// How long a step will take, learned from the steps so far:
//   time = f(rows) + context * c,
// f piecewise linear, with four knots an octave, so that it can be flat while reading the weights
// bounds a step and rise once arithmetic does; c the time to read one token's KV. Fitted by least
// squares of relative errors with old steps forgotten. Where no step has been yet, f is taken from
// the rooflines that fit, fixed + slope * max(rows, knee): the lowest of them, so that what is not
// known is tried. One thread; allocates nothing.

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"

namespace specfabric::scheduler {

class StepTime {
 public:
  // rows: of the step; context: tokens whose KV it reads, over all sequences.
  void Observe(int32_t rows, int64_t context, base::Nanos time);
  // At least 1, never falling in rows. Before the first observation rows cost nothing: kUnknown.
  static constexpr base::Nanos kUnknown = base::kMillisecond;
  base::Nanos Predict(int32_t rows, int64_t context) const;
  bool known() const { return steps_ > 0; }
  // The most rows that a step should try where others have so many: four times what was tried
  // before, one size after the other. From where on arithmetic bounds steps, such a one shows as
  // well as one of sixteen times the rows, which takes all the longer.
  int32_t Reach(int32_t rows) const;
  // Steps of about so many rows that are remembered: at first each counts one, later ever less.
  double Known(int32_t rows) const;

 private:
  static constexpr int kKnots = 40;  // f at 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ..., 2048
  using Knots = std::array<double, kKnots>;
  // What is solved for: f at the knots in seconds, c in seconds a 1,000 tokens.
  struct Vector {
    Knots f = {};
    double c = 0;
  };
  // Sums of x x' / time^2: a step is between two knots, so they are neighbours or c.
  struct Matrix {
    Knots f_f = {}, f_next = {}, f_c = {};
    double c_c = 0;
    Vector Times(const Vector& v) const;
    // Solves for v in place; the matrix must be positive.
    void Solve(Vector* v) const;
  };
  struct Roofline {
    double fixed = 0, slope = 0, knee = 0, context = 0;
    double squared_error = 0;  // sum of squares of relative errors
    double At(double rows) const;
  };
  struct Place {
    int knot = 0;
    double above = 0;  // share of the knot after it
  };

  static double RowsAt(int knot);
  static Place At(int32_t rows);
  static int IntervalOf(Place place) { return std::min(place.knot, kKnots - 2); }
  // Over all steps that are remembered.
  struct Sums {
    Matrix normal;
    Vector right;                   // x / time
    double square = 0, weight = 0;  // 1, and steps
  };
  Sums AddUp() const;
  // Of those with this knee, the one that fits best.
  Roofline FitRoofline(const Sums& sums, double knee) const;
  // At every knot the lowest of the rooflines that fit about as well as the best.
  Vector LowestRoofline(const Sums& sums) const;
  void Solve();

  // Sums over the steps between a knot and the next, which alone forget quickly: what a step of so
  // many rows takes is known from the last few, whatever other steps there were since.
  struct Interval {
    double f_f = 0, f_next = 0, next_next = 0, f_c = 0, next_c = 0, c_c = 0;
    double f_time = 0, next_time = 0, c_time = 0;
    double square = 0, weight = 0;
    void Forget(double share);
  };
  std::array<Interval, kKnots - 1> intervals_ = {};
  Vector fit_;
  double scale_ = 0;  // smoothed time of a step
  int64_t steps_ = 0;
  int held_up_ = 0;  // steps in a row that took far longer than expected
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_STEP_TIME_H_
