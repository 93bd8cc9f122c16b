#include "scheduler/policy/reply_time.h"

#include <algorithm>
#include <cmath>

namespace specfabric::scheduler {
namespace {

// So many rounds count, about: where many ask together, replies of one are of the same depth.
constexpr double kRounds = 50;
// A worker that was cold, or held up, is not so for ever; to hope too much costs one wait.
constexpr double kMuchFaster = 0.5, kSlowDecay = 0.5;
// Weight, as a share of a reply's, of what other loads say of the share of the fixed time, or that
// there is none: it makes the time of a level known from trees of a single depth.
constexpr double kPriorWeight = 0.05;
// Of the depths of trees, from which on they say themselves what a level takes.
constexpr double kKnownVariance = 0.1;
// More than a round's: the first replies of a load may all have been ready before it began.
constexpr double kEnoughReplies = 16;

}  // namespace

ReplyTime::Line ReplyTime::Fit::Fitted(double fixed_share) const {
  if (n == 0) return {};
  const double mean = t / n, depth = d / n;
  // What the share says of the fixed time counts as some replies of no levels.
  const double prior = kPriorWeight * n;
  const double fixed_prior = mean * fixed_share / (fixed_share + (1 - fixed_share) * depth);
  const double nn = n + prior, tt = t + prior * fixed_prior;
  const double determinant = nn * dd - d * d;
  const Line line = {.fixed = (tt * dd - d * dt) / determinant,
                     .level = (nn * dt - d * tt) / determinant};
  if (line.fixed < 0) return {.level = dt / dd};
  if (line.level < 0) return {.fixed = mean};
  return line;
}

bool ReplyTime::Fit::KnowsLevels() const {
  return n > 0 && dd / n - (d / n) * (d / n) > kKnownVariance;
}

// As it is at the nearest load where trees were of several depths.
double ReplyTime::FixedShare(int load) const {
  const auto near = NearestLoad(load, kLoads, [&](int l) { return fits_[l].KnowsLevels(); });
  if (!near) return 0;
  const Line line = fits_[*near].Fitted(0);
  return line.fixed / (line.fixed + line.level);
}

int ReplyTime::Nearest(int32_t askers) const {
  const int load = LoadOf(askers);
  return NearestLoad(load, kLoads, [&](int l) { return fits_[l].n > 0; }).value_or(load);
}

double ReplyTime::ExpectUs(int32_t askers, double depth) const {
  const int load = Nearest(askers);
  const Line line = fits_[load].Fitted(FixedShare(load));
  return line.fixed + line.level * depth;
}

void ReplyTime::Observe(int32_t askers, int32_t depth, base::Nanos latency) {
  Fit& fit = fits_[LoadOf(askers)];
  const double us = static_cast<double>(latency) / 1e3, levels = std::max(1, depth);
  if (observed_) {
    const double off = std::abs(us - ExpectUs(askers, levels));
    fit.deviation = fit.n == 0 ? off : fit.deviation + (off - fit.deviation) / 16;
  }
  const bool much_faster = fit.n > 0 && us < kMuchFaster * ExpectUs(askers, levels);
  const double forget = much_faster ? kSlowDecay : 1 - 1 / (kRounds * std::max(1, askers));
  fit.n = forget * fit.n + 1;
  fit.d = forget * fit.d + levels;
  fit.dd = forget * fit.dd + levels * levels;
  fit.t = forget * fit.t + us;
  fit.dt = forget * fit.dt + levels * us;
  observed_ = true;
}

void ReplyTime::ObserveAtLeast(int32_t askers, int32_t depth, base::Nanos waited) {
  if (waited > Expect(askers, depth)) Observe(askers, depth, waited);
}

bool ReplyTime::known(int32_t askers) const { return fits_[LoadOf(askers)].n >= kEnoughReplies; }

base::Nanos ReplyTime::Expect(int32_t askers, double depth) const {
  return static_cast<base::Nanos>(1e3 * ExpectUs(askers, std::max(1.0, depth)));
}

base::Nanos ReplyTime::Deviation(int32_t askers) const {
  return static_cast<base::Nanos>(1e3 * fits_[Nearest(askers)].deviation);
}

}  // namespace specfabric::scheduler
