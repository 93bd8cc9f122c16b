#include "scheduler/step_time.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "absl/types/span.h"

namespace specfabric::scheduler {
namespace {

constexpr double kForget = 0.995;       // of what is known, at every step: about 200 steps count
constexpr int kSolveEvery = 8;          // steps, once there are some
constexpr double kStraight = 1e-3;      // weight of the preference, beside that of one step
constexpr double kSmallContext = 1e-4;  // keeps c near 0 while contexts have not differed

// The rising sequence nearest to the values (pool adjacent violators), each as weighty as what is
// known of it: more rows never take less.
void LevelWhatFalls(absl::Span<const double> weights, absl::Span<double> values) {
  struct Pool {
    double sum = 0, weight = 0;
    int count = 0;
    double level() const { return sum / weight; }
  };
  std::vector<Pool> pools;
  for (size_t i = 0; i < values.size(); ++i) {
    pools.push_back({weights[i] * values[i], weights[i], 1});
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
    for (int i = 0; i < pool.count; ++i) values[at++] = pool.level();
  }
}

}  // namespace

StepTime::Place StepTime::At(int32_t rows) {
  const auto at = static_cast<uint32_t>(std::clamp(rows, 1, 1 << (kKnots - 1)));
  const int knot = std::min(static_cast<int>(std::bit_width(at)) - 1, kKnots - 2);
  const double low = std::ldexp(1.0, knot);
  return {knot, (at - low) / low};
}

void StepTime::Observe(int32_t rows, int64_t context, base::Nanos time) {
  const double us = static_cast<double>(time) / 1e3;
  scale_ = steps_ == 0 ? us : scale_ + (us - scale_) / 16;
  // A step that was held up by something else (a page fault, a neighbour) teaches nothing.
  if (steps_ > 32) {
    const double expected = static_cast<double>(Predict(rows, context)) / 1e3;
    if (us > 4 * std::max(expected, scale_)) return;
  }
  const Place place = At(rows);
  Vector x = {};
  x[place.knot] = 1 - place.above;
  x[place.knot + 1] = place.above;
  x[kKnots] = static_cast<double>(context) / 1e3;
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) normal_[i][j] = kForget * normal_[i][j] + x[i] * x[j];
    right_[i] = kForget * right_[i] + x[i] * us;
  }
  ++steps_;
  if (steps_ < kSolveEvery || steps_ % kSolveEvery == 0) Solve();
}

void StepTime::Solve() {
  std::array<Vector, kSize> a = normal_;
  Vector b = right_;
  // The preference: f's slope is the same on both sides of a knot. In rows, so that the weights of
  // a knot's neighbours are as their distances are.
  for (int k = 1; k + 1 < kKnots; ++k) {
    const double before = 2.0 / 3, after = 1.0 / 3;
    const int index[3] = {k - 1, k, k + 1};
    const double weight[3] = {before, -1, after};
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) a[index[i]][index[j]] += kStraight * weight[i] * weight[j];
    }
  }
  a[kKnots][kKnots] += kSmallContext;
  for (int k = 0; k < kKnots; ++k) a[k][k] += 1e-9;  // for knots that nothing has told of
  // Cholesky: a = L L'.
  std::array<Vector, kSize> l = {};
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (int k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      l[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / l[j][j];
    }
  }
  for (int i = 0; i < kSize; ++i) {
    for (int k = 0; k < i; ++k) b[i] -= l[i][k] * b[k];
    b[i] /= l[i][i];
  }
  for (int i = kSize - 1; i >= 0; --i) {
    for (int k = i + 1; k < kSize; ++k) b[i] -= l[k][i] * b[k];
    b[i] /= l[i][i];
  }
  fit_ = b;
  Vector weights;
  for (int k = 0; k < kSize; ++k) weights[k] = a[k][k];
  LevelWhatFalls(absl::MakeSpan(weights).subspan(0, kKnots),
                 absl::MakeSpan(fit_).subspan(0, kKnots));
  for (int k = 0; k < kKnots; ++k) fit_[k] = std::max(fit_[k], 0.0);
  fit_[kKnots] = std::max(fit_[kKnots], 0.0);
}

base::Nanos StepTime::Predict(int32_t rows, int64_t context) const {
  const Place place = At(rows);
  double us = fit_[place.knot] * (1 - place.above) + fit_[place.knot + 1] * place.above;
  const int32_t most = 1 << (kKnots - 1);
  if (rows > most) us *= static_cast<double>(rows) / most;
  us += fit_[kKnots] * static_cast<double>(context) / 1e3;
  return static_cast<base::Nanos>(us * 1e3);
}

}  // namespace specfabric::scheduler
