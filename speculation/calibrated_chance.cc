#include "speculation/calibrated_chance.h"

#include <algorithm>

namespace specfabric::speculation {
namespace {

constexpr double kBinDecay = 0.998;  // about 500 tokens of a bin count
constexpr double kSaidCounts = 8;    // as so many tokens that were seen
constexpr float kLeast = 0.001f;

}  // namespace

// What is not a number is in the first bin.
int CalibratedChance::BinOf(float said) {
  return said > 0 ? std::min(static_cast<int>(std::min(said, 1.0f) * kBins), kBins - 1) : 0;
}

float CalibratedChance::Of(float said) const {
  const Bin& bin = bins_[BinOf(said)];
  const double prior = said > 0 ? std::min(said, 1.0f) : 0.0f;
  const double chance = (bin.accepted + kSaidCounts * prior) / (bin.seen + kSaidCounts);
  return std::clamp(static_cast<float>(chance), kLeast, 1 - kLeast);
}

void CalibratedChance::Observe(float said, bool accepted) {
  Bin& bin = bins_[BinOf(said)];
  bin.seen = kBinDecay * bin.seen + 1;
  bin.accepted = kBinDecay * bin.accepted + (accepted ? 1 : 0);
}

}  // namespace specfabric::speculation
