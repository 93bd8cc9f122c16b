#include "scheduler/policy/step_time.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/container/inlined_vector.h"

namespace specfabric::scheduler {
namespace {

constexpr double kStepDecay = 0.998;  // of what is known, at every step: about 500 steps count
constexpr double kLocalDecay = 0.93;  // at every step of about as many rows: about 14 count
constexpr double kInitialDecay = 1e-4;
constexpr double kOutlier = 2.5;  // times what is expected
constexpr int kMaxOutliers = 2;   // in a row
constexpr int kFirstSteps = 16;   // after each of which it is solved anew
constexpr int kLearning = 256, kSolveOften = 8;
constexpr int kSolveEvery = 32;
// It is solved at once after a step of a size with fewer samples than kFewSamples whose time
// differs from the expected one by more than this share of it.
constexpr double kFewSamples = 8, kSurprisingError = 0.1;
constexpr double kRooflineWeight = 1e-3;  // of the rooflines in the fit; a step's weight is 1
constexpr double kMinTimeShare = 1e-2;    // least time of a roofline in the fit, over `scale_`
constexpr double kEqualFitRatio = 1.1;    // sums of squares below this ratio count as equal
constexpr double kNoise = 0.005;          // and so do deviations below this share of a step's time
// Damps c until contexts have differed by thousands of tokens: before that rows explain as much,
// since steps of many rows have long contexts too.
constexpr double kSmallContext = 3;
// Damps `fixed` of a roofline: the noise of a few steps of about as many rows looks like a slope,
// which would make the time of fewer rows negative.
constexpr double kSmallFixed = 3;
constexpr int32_t kMostRows = 2048;
constexpr double kMinSampleWeight = 0.05;  // what is left of a step after 1,500 others
constexpr int32_t kFewRows = 8;            // may always be tried: they cannot take long
constexpr double kStride = 4;              // from one size that was tried to the next

// Replaces the values by the nearest sequence that never falls (pool adjacent violators), weighted:
// more rows never take less time.
template <size_t N>
void MakeNonDecreasing(const std::array<double, N>& weights, std::array<double, N>* values) {
  struct Pool {
    double sum = 0, weight = 0;
    int count = 0;
    double level() const { return sum / weight; }
  };
  absl::InlinedVector<Pool, N> pools;
  for (size_t i = 0; i < N; ++i) {
    pools.push_back({weights[i] * (*values)[i], weights[i], 1});
    while (pools.size() > 1 && pools.back().level() < pools[pools.size() - 2].level()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().sum += last.sum;
      pools.back().weight += last.weight;
      pools.back().count += last.count;
    }
  }
  size_t at = 0;
  for (const Pool& pool : pools) {
    for (int i = 0; i < pool.count; ++i) (*values)[at++] = pool.level();
  }
}

template <size_t N>
double Dot(const std::array<double, N>& a, const std::array<double, N>& b) {
  double sum = 0;
  for (size_t i = 0; i < N; ++i) sum += a[i] * b[i];
  return sum;
}

// Solves a x = b into b by Cholesky factors; a is symmetric and positive definite.
void Solve3(std::array<std::array<double, 3>, 3> a, std::array<double, 3>* b) {
  auto& x = *b;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (int k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / a[j][j];
    }
  }
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < i; ++k) x[i] -= a[i][k] * x[k];
    x[i] /= a[i][i];
  }
  for (int i = 2; i >= 0; --i) {
    for (int k = i + 1; k < 3; ++k) x[i] -= a[k][i] * x[k];
    x[i] /= a[i][i];
  }
}

}  // namespace

double StepTime::RowsAt(int knot) {
  if (knot < 3) return knot + 1;
  return static_cast<double>(int64_t{4 + (knot - 3) % 4} << (knot - 3) / 4);
}

std::vector<int32_t> StepTime::Sizes(int32_t most) {
  std::vector<int32_t> sizes;
  for (int k = 0; k < kKnots && RowsAt(k) <= most; ++k) {
    sizes.push_back(static_cast<int32_t>(RowsAt(k)));
  }
  return sizes;
}

StepTime::Place StepTime::At(int32_t rows) {
  const auto at = static_cast<uint32_t>(std::clamp(rows, 1, kMostRows));
  if (at < 4) return {static_cast<int>(at) - 1, 0};
  const int octave = static_cast<int>(std::bit_width(at)) - 3;
  const int knot = std::min(4 * octave + static_cast<int>(at >> octave) - 1, kKnots - 2);
  return {knot, (at - RowsAt(knot)) / (RowsAt(knot + 1) - RowsAt(knot))};
}

StepTime::Vector StepTime::Matrix::Times(const Vector& v) const {
  Vector result;
  for (int k = 0; k < kKnots; ++k) {
    result.f[k] = f_f[k] * v.f[k] + f_c[k] * v.c;
    if (k > 0) result.f[k] += f_next[k - 1] * v.f[k - 1];
    if (k + 1 < kKnots) result.f[k] += f_next[k] * v.f[k + 1];
  }
  result.c = Dot(f_c, v.f) + c_c * v.c;
  return result;
}

// Cholesky's factor has the same form: a diagonal, the one below it, and a last row.
void StepTime::Matrix::Solve(Vector* v) const {
  Knots diagonal, below = {}, last;
  double corner = c_c;
  for (int k = 0; k < kKnots; ++k) {
    const double before = k > 0 ? below[k - 1] : 0;
    diagonal[k] = std::sqrt(std::max(f_f[k] - before * before, 1e-12));
    if (k + 1 < kKnots) below[k] = f_next[k] / diagonal[k];
    last[k] = (f_c[k] - (k > 0 ? last[k - 1] * before : 0)) / diagonal[k];
    corner -= last[k] * last[k];
  }
  corner = std::sqrt(std::max(corner, 1e-12));
  for (int k = 0; k < kKnots; ++k) {
    if (k > 0) v->f[k] -= below[k - 1] * v->f[k - 1];
    v->f[k] /= diagonal[k];
    v->c -= last[k] * v->f[k];
  }
  v->c /= corner * corner;
  for (int k = kKnots - 1; k >= 0; --k) {
    v->f[k] -= last[k] * v->c;
    if (k + 1 < kKnots) v->f[k] -= below[k] * v->f[k + 1];
    v->f[k] /= diagonal[k];
  }
}

void StepTime::Observe(int32_t rows, int64_t context, base::Nanos time) {
  const double seconds = static_cast<double>(time) / 1e9;
  // A step that something else held up (page faults, another process) is not learned from: one such
  // step would be all that is known of a size that is seldom seen. After kMaxOutliers in a row it
  // is: steps of that size may take that long.
  const double expected = known() ? static_cast<double>(Predict(rows, context)) / 1e9 : seconds;
  const bool outlier = steps_ > kFirstSteps && seconds > kOutlier * std::max(expected, scale_);
  if (outlier && ++held_up_ <= kMaxOutliers) return;
  held_up_ = 0;
  scale_ = steps_ == 0 ? seconds : scale_ + (seconds - scale_) / 16;
  // The very first maps its memory: it counts little once there is another.
  const double forget = steps_ == 1 ? kInitialDecay : kStepDecay;
  for (Interval& interval : intervals_) interval.Forget(forget);
  const Place place = At(rows);
  const double at = 1 - place.above, above = place.above;
  const double thousands = static_cast<double>(context) / 1e3;
  Interval& interval = intervals_[IntervalOf(place)];
  interval.Forget(kLocalDecay);
  // Long steps have larger errors: the fit minimises relative ones.
  const double longer = std::max(seconds, expected);
  const double precision = 1 / (longer * longer);
  interval.f_f += precision * at * at;
  interval.f_next += precision * at * above;
  interval.next_next += precision * above * above;
  interval.f_c += precision * at * thousands;
  interval.next_c += precision * above * thousands;
  interval.c_c += precision * thousands * thousands;
  interval.f_time += precision * at * seconds;
  interval.next_time += precision * above * seconds;
  interval.c_time += precision * thousands * seconds;
  interval.square += precision * seconds * seconds;
  interval.weight += 1;
  ++steps_;
  const bool surprising =
      interval.weight < kFewSamples && std::abs(seconds - expected) > kSurprisingError * expected;
  const int every = steps_ <= kFirstSteps ? 1 : steps_ < kLearning ? kSolveOften : kSolveEvery;
  if (surprising || steps_ % every == 0) Solve();
}

void StepTime::Interval::Forget(double share) {
  for (double* sum : {&f_f, &f_next, &next_next, &f_c, &next_c, &c_c, &f_time, &next_time, &c_time,
                      &square, &weight}) {
    *sum *= share;
  }
}

StepTime::Sums StepTime::AddUp() const {
  Sums sums;
  Matrix& normal = sums.normal;
  for (int k = 0; k + 1 < kKnots; ++k) {
    const Interval& interval = intervals_[k];
    normal.f_f[k] += interval.f_f;
    normal.f_f[k + 1] += interval.next_next;
    normal.f_next[k] += interval.f_next;
    normal.f_c[k] += interval.f_c;
    normal.f_c[k + 1] += interval.next_c;
    normal.c_c += interval.c_c;
    sums.right.f[k] += interval.f_time;
    sums.right.f[k + 1] += interval.next_time;
    sums.right.c += interval.c_time;
    sums.square += interval.square;
    sums.weight += interval.weight;
  }
  return sums;
}

double StepTime::Roofline::At(double rows) const { return fixed + slope * std::max(rows, knee); }

// Least squares of fixed, slope and context, each a vector over the knots and c.
StepTime::Roofline StepTime::FitRoofline(const Sums& sums, double knee) const {
  std::array<Vector, 3> basis;
  basis[0].f.fill(1);
  for (int k = 0; k < kKnots; ++k) basis[1].f[k] = std::max(RowsAt(k), knee) / kMostRows;
  basis[2].c = 1;
  const auto dot = [](const Vector& a, const Vector& b) { return Dot(a.f, b.f) + a.c * b.c; };
  std::array<std::array<double, 3>, 3> a;
  std::array<double, 3> b;
  for (int p = 0; p < 3; ++p) {
    b[p] = dot(basis[p], sums.right);
    const Vector row = sums.normal.Times(basis[p]);
    for (int q = 0; q < 3; ++q) a[p][q] = dot(row, basis[q]);
  }
  auto damped = a;
  for (int p = 0; p < 3; ++p) damped[p][p] += 1e-9 + 1e-9 * a[p][p];
  damped[2][2] += kSmallContext / (scale_ * scale_);
  std::array<double, 3> x = b;
  Solve3(damped, &x);
  if (x[0] < 0) {
    damped[0][0] += kSmallFixed / (scale_ * scale_);
    x = b;
    Solve3(damped, &x);
  }
  if (x[2] < 0) {  // then the best fit without a negative value has 0
    damped[0][2] = damped[2][0] = damped[1][2] = damped[2][1] = 0;
    x = {b[0], b[1], 0};
    Solve3(damped, &x);
  }
  Roofline fit = {.fixed = x[0], .slope = x[1] / kMostRows, .knee = knee, .context = x[2]};
  fit.squared_error = sums.square - 2 * Dot(x, b);
  for (int p = 0; p < 3; ++p) fit.squared_error += x[p] * Dot(a[p], x);
  if (x[1] < 0) fit.squared_error = sums.square;  // as bad as no fit
  return fit;
}

StepTime::Vector StepTime::LowestRoofline(const Sums& sums) const {
  // Knees at the knots and halfway between them.
  std::array<Roofline, 2 * kKnots - 1> fits;
  const Roofline* best = nullptr;
  for (size_t i = 0; i < fits.size(); ++i) {
    const int knot = static_cast<int>(i) / 2;
    fits[i] = FitRoofline(sums, i % 2 == 0 ? RowsAt(knot) : (RowsAt(knot) + RowsAt(knot + 1)) / 2);
    if (best == nullptr || fits[i].squared_error < best->squared_error) best = &fits[i];
  }
  const double noise = sums.weight * kNoise * kNoise;
  Vector lowest;
  lowest.f.fill(INFINITY);
  lowest.c = best->context;
  for (const Roofline& fit : fits) {
    if (fit.squared_error > kEqualFitRatio * best->squared_error + noise) continue;
    for (int k = 0; k < kKnots; ++k) lowest.f[k] = std::min(lowest.f[k], fit.At(RowsAt(k)));
  }
  return lowest;
}

void StepTime::Solve() {
  const Sums sums = AddUp();
  const Vector shape = LowestRoofline(sums);
  Matrix a = sums.normal;
  Vector b = sums.right;
  for (int k = 0; k < kKnots; ++k) {
    const double size = std::max(shape.f[k], kMinTimeShare * scale_);
    const double precision = kRooflineWeight / (size * size);
    a.f_f[k] += precision;
    b.f[k] += precision * shape.f[k];
  }
  a.c_c += kSmallContext / (scale_ * scale_);
  fit_ = b;
  a.Solve(&fit_);
  if (fit_.c < 0) {
    // Steps became faster for another reason while contexts grew, as the first ones do: solve with
    // c = 0.
    a.f_c = {};
    b.c = 0;
    fit_ = b;
    a.Solve(&fit_);
  }
  MakeNonDecreasing(a.f_f, &fit_.f);
  for (double& f : fit_.f) f = std::max(f, 0.0);
}

int32_t StepTime::Reach(int32_t rows) const {
  double tried = std::max(rows, kFewRows);
  for (int k = IntervalOf(At(rows)); k + 1 < kKnots && RowsAt(k) <= kStride * tried; ++k) {
    if (intervals_[k].weight >= kMinSampleWeight) tried = std::max(tried, RowsAt(k));
  }
  return static_cast<int32_t>(kStride * tried);
}

double StepTime::Known(int32_t rows) const { return intervals_[IntervalOf(At(rows))].weight; }

base::Nanos StepTime::Predict(int32_t rows, int64_t context) const {
  if (!known()) return kUnknown;
  const Place place = At(rows);
  double seconds = fit_.f[place.knot] * (1 - place.above) + fit_.f[place.knot + 1] * place.above;
  if (rows > kMostRows) seconds *= static_cast<double>(rows) / kMostRows;
  seconds += fit_.c * static_cast<double>(context) / 1e3;
  return std::max<base::Nanos>(1, static_cast<base::Nanos>(seconds * 1e9));
}

}  // namespace specfabric::scheduler
