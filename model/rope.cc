#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace specfabric::model {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

double Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = kTwoPi / frequency;
  const double context = rope.original_context;
  if (wavelength < context / rope.high_freq_factor) return frequency;
  if (wavelength > context / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (context / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The index of the dimension that turns `rotations` times over the original context (YaRN, eq. 17
// solved for the dimension).
double YarnDimension(const RopeConfig& rope, int head_dim, double rotations) {
  return head_dim * std::log(rope.original_context / (rotations * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

struct YarnRamp {
  double low, high;
};

YarnRamp MakeYarnRamp(const RopeConfig& rope, int head_dim) {
  double low = YarnDimension(rope, head_dim, rope.beta_fast);
  double high = YarnDimension(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  return {low, high};
}

// In float32 like transformers: near the end of the ramp, 1 - (1 - x) keeps few bits of x, and a
// checkpoint was trained with those.
double YarnFrequency(const RopeConfig& rope, const YarnRamp& ramp, int i, double frequency) {
  const float rise = (static_cast<float>(i) - static_cast<float>(ramp.low)) /
                     static_cast<float>(ramp.high - ramp.low);
  const float extrapolated = 1.0f - std::clamp(rise, 0.0f, 1.0f);
  const float interpolated = 1.0f - extrapolated;
  return static_cast<float>(frequency / rope.factor) * interpolated +
         static_cast<float>(frequency) * extrapolated;
}

double YarnScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeConfig& rope) {
  if (rope.attention_factor > 0.0) return rope.attention_factor;
  if (rope.mscale > 0.0 && rope.mscale_all_dim > 0.0) {
    return YarnScale(rope.factor, rope.mscale) / YarnScale(rope.factor, rope.mscale_all_dim);
  }
  return YarnScale(rope.factor, 1.0);
}

}  // namespace

RopeTable MakeRopeTable(const RopeConfig& rope, int head_dim) {
  RopeTable table;
  YarnRamp ramp{0.0, 1.0};
  if (rope.kind == RopeKind::kYarn) {
    ramp = MakeYarnRamp(rope, head_dim);
    table.attention_factor = static_cast<float>(YarnAttentionFactor(rope));
  }
  for (int i = 0; i < head_dim / 2; ++i) {
    double frequency = 1.0 / std::pow(rope.theta, 2.0 * i / head_dim);
    switch (rope.kind) {
      case RopeKind::kDefault:
        break;
      case RopeKind::kLinear:
        frequency /= rope.factor;
        break;
      case RopeKind::kLlama3:
        frequency = Llama3Frequency(rope, frequency);
        break;
      case RopeKind::kYarn:
        frequency = YarnFrequency(rope, ramp, i, frequency);
        break;
    }
    table.inverse_frequencies.push_back(static_cast<float>(frequency));
  }
  return table;
}

void RopeAngles(const RopeTable& table, absl::Span<const int32_t> positions,
                std::vector<float>* cosines, std::vector<float>* sines) {
  const size_t half = table.inverse_frequencies.size();
  cosines->resize(positions.size() * half);
  sines->resize(positions.size() * half);
  size_t out = 0;
  for (int32_t position : positions) {
    for (size_t i = 0; i < half; ++i, ++out) {
      const float angle = static_cast<float>(position) * table.inverse_frequencies[i];
      (*cosines)[out] = static_cast<float>(std::cos(double{angle})) * table.attention_factor;
      (*sines)[out] = static_cast<float>(std::sin(double{angle})) * table.attention_factor;
    }
  }
}

void Rotate(const float* cosines, const float* sines, int head_dim, float* head) {
  const int half = head_dim / 2;
  float* upper = head + half;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = upper[i];
    head[i] = a * cosines[i] - b * sines[i];
    upper[i] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace specfabric::model
