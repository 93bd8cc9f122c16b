#ifndef SPECFABRIC_SPECULATION_CALIBRATED_CHANCE_H_
#define SPECFABRIC_SPECULATION_CALIBRATED_CHANCE_H_

// How often a drafter's likeliest token is accepted, given the chance that its confidence head says
// (DSpark, arXiv 2607.05147). A head is trained on other text and at one temperature, so what it
// says is corrected by what came true, in bins of what it said. One thread; pure.

#include <array>

namespace specfabric::speculation {

class CalibratedChance {
 public:
  // Neither 0 nor 1, whatever is said.
  float Of(float said) const;
  void Observe(float said, bool accepted);

 private:
  struct Bin {
    double seen = 0, accepted = 0;  // older ones count less
  };
  static constexpr int kBins = 16;
  static int BinOf(float said);

  std::array<Bin, kBins> bins_;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_CALIBRATED_CHANCE_H_
