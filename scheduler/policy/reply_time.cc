#include "scheduler/policy/reply_time.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specfabric::scheduler {
namespace {

constexpr double kReplyDecay = 0.98;  // about 50 replies count
// A worker that was cold, or held up, is not so for ever; to hope too much costs one wait.
constexpr double kMuchFaster = 0.5, kSlowDecay = 0.5;
// Weight, as a share of a reply's, of the prior that no time is fixed: it makes the time of a level
// known from trees of a single depth.
constexpr double kNoFixedTimeWeight = 0.05;
// More than a round's: the first replies of a load may all have been ready before it began.
constexpr double kEnoughReplies = 16;

}  // namespace

int ReplyTime::Load(int32_t askers) {
  return std::min(static_cast<int>(std::bit_width(static_cast<uint32_t>(std::max(1, askers)))) - 1,
                  kLoads - 1);
}

double ReplyTime::Fit::Expect(double depth) const {
  if (n == 0) return 0;
  const double nn = n * (1 + kNoFixedTimeWeight);
  const double determinant = nn * dd - d * d;
  double fixed = 0, level = dd > 0 ? dt / dd : 0;
  if (determinant > 1e-9 * nn * dd) {
    fixed = (t * dd - d * dt) / determinant;
    level = (nn * dt - d * t) / determinant;
  }
  if (fixed < 0) return depth * (dt / dd);
  if (level < 0) return t / n;
  return fixed + level * depth;
}

const ReplyTime::Fit& ReplyTime::Nearest(int32_t askers) const {
  const int load = Load(askers);
  for (int away = 0; away < kLoads; ++away) {
    if (load - away >= 0 && fits_[load - away].n > 0) return fits_[load - away];
    if (load + away < kLoads && fits_[load + away].n > 0) return fits_[load + away];
  }
  return fits_[load];
}

void ReplyTime::Observe(int32_t askers, int32_t depth, base::Nanos latency) {
  Fit& fit = fits_[Load(askers)];
  const double us = static_cast<double>(latency) / 1e3, levels = std::max(1, depth);
  if (observed_) {
    const double off = std::abs(us - Nearest(askers).Expect(levels));
    fit.deviation = fit.n == 0 ? off : fit.deviation + (off - fit.deviation) / 16;
  }
  const double forget = us < kMuchFaster * fit.Expect(levels) ? kSlowDecay : kReplyDecay;
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

bool ReplyTime::known(int32_t askers) const { return fits_[Load(askers)].n >= kEnoughReplies; }

base::Nanos ReplyTime::Expect(int32_t askers, double depth) const {
  return static_cast<base::Nanos>(1e3 * Nearest(askers).Expect(std::max(1.0, depth)));
}

base::Nanos ReplyTime::Deviation(int32_t askers) const {
  return static_cast<base::Nanos>(1e3 * Nearest(askers).deviation);
}

}  // namespace specfabric::scheduler
