#include "speculation/fan_out.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace specfabric::speculation {
namespace {

// Of k draft tokens being accepted, and no more.
double OutcomeChance(double acceptance, int k, int levels) {
  const double reached = std::pow(acceptance, k);
  return k < levels ? reached * (1 - acceptance) : reached;
}

double Covered(double candidates, double falloff) {
  return candidates < 1 ? 0.0 : 1 - std::pow(candidates, -falloff);
}

}  // namespace

std::vector<double> GeometricFanOut(double acceptance, double falloff, int levels, double budget) {
  std::vector<double> fan_out;
  for (int k = 0; k <= levels; ++k) {
    fan_out.push_back(std::pow(OutcomeChance(acceptance, k, levels), 1 / (1 + falloff)));
  }
  const double sum = std::accumulate(fan_out.begin(), fan_out.end(), 0.0);
  for (double& candidates : fan_out) candidates *= budget / sum;
  return fan_out;
}

std::vector<int32_t> WholeFanOut(double acceptance, double falloff, int levels, int32_t budget) {
  std::vector<int32_t> fan_out(levels + 1, 0);
  // The gain of one more candidate falls with their number, so the greedy choice is optimal.
  const auto gain = [&](int k) {
    const double chance = OutcomeChance(acceptance, k, levels);
    if (fan_out[k] == 0) return 1 + chance;
    return chance * (Covered(fan_out[k] + 1, falloff) - Covered(fan_out[k], falloff));
  };
  for (int32_t left = budget; left > 0; --left) {
    int best = 0;
    for (int k = 1; k <= levels; ++k) {
      if (gain(k) > gain(best)) best = k;
    }
    ++fan_out[best];
  }
  return fan_out;
}

std::vector<int32_t> UniformFanOut(int levels, int32_t budget) {
  std::vector<int32_t> fan_out(levels + 1, budget / (levels + 1));
  for (int k = 0; k < budget % (levels + 1); ++k) ++fan_out[k];
  return fan_out;
}

double FanOutHitRate(double acceptance, double falloff, const std::vector<double>& fan_out) {
  const int levels = static_cast<int>(fan_out.size()) - 1;
  double rate = 0;
  for (int k = 0; k <= levels; ++k) {
    rate += OutcomeChance(acceptance, k, levels) * Covered(fan_out[k], falloff);
  }
  return rate;
}

}  // namespace specfabric::speculation
