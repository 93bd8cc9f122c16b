#ifndef SPECFABRIC_SPECULATION_DRAFTER_CHOICE_H_
#define SPECFABRIC_SPECULATION_DRAFTER_CHOICE_H_

// Which of several drafters makes the next round's tree. Pure: what is random follows from a seed
// and a counter, and there is no clock.
//
// A reward is in [0, 1]: a round's tokens a second, divided by the most that a round can reach.
// Where only the chosen drafter is seen, its reward alone teaches (kUcb1, kThompson). Where all
// drafted and all are scored on the verified text (verification.md section 9), which costs a draft
// pass of each, all teach: kHedge learns from nothing else, and says when it wants that.
//
// The best drafter changes, from code to prose, so that what was learned fades: `memory` is about
// the number of rounds that count, and no drafter's share falls to nothing.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace specfabric::speculation {

enum class ChoicePolicy : uint8_t {
  kHedge = 0,     // Freund and Schapire 1997, with Herbster and Warmuth's fixed share (1998)
  kUcb1 = 1,      // Auer, Cesa-Bianchi and Fischer 2002; discounted as by Garivier, Moulines 2011
  kThompson = 2,  // Beta posteriors, discounted
  kFixed = 3,     // always the same
  kOracle = 4,    // takes the best of the rewards given to Foresee: an upper bound, for benches
};

// "hedge", "ucb1", "thompson", "fixed", "oracle".
const char* Name(ChoicePolicy policy);
absl::StatusOr<ChoicePolicy> ParseChoicePolicy(std::string_view name);

struct ChoiceOptions {
  ChoicePolicy policy = ChoicePolicy::kHedge;
  int32_t fixed = 0;
  double memory = 64;  // rounds
  // kHedge. Weights are multiplied by exp(-rate * loss), loss = 1 - reward; then every drafter gets
  // `share` of the whole, evenly. One round in score_every is scored, by chance. With share = 0 and
  // every round scored the expected loss is at most the best drafter's + ln(drafters) / rate +
  // rate * rounds / 8.
  double rate = 2;
  double share = 0.01;
  int32_t score_every = 8;
  // kUcb1: the part of the published confidence radius, sqrt(2 ln(rounds) / rounds of the arm),
  // that is added. Rewards differ by less than the whole range.
  double radius = 0.25;
  uint64_t seed = 0;
};

class DrafterChoice {
 public:
  DrafterChoice(const ChoiceOptions& options, int32_t drafters);

  int32_t drafters() const { return static_cast<int32_t>(arms_.size()); }
  // One more, which knows as little as all did in the beginning but starts with an even share.
  void AddDrafter();
  // Other random numbers from now on.
  void Reseed(uint64_t seed);

  struct Round {
    int32_t drafter = 0;     // whose tree is verified
    bool score_all = false;  // all others ought to draft too, and Scored be called
  };
  // usable: [drafters], at least one of them true; empty: all.
  Round Next(const std::vector<bool>& usable = {});

  // What came of a round of this drafter, whoever else drafted: a drafter that did not come in time
  // has reward 0. Ignored by kHedge, which is told by Scored.
  void Rewarded(int32_t drafter, double reward);
  // The rewards of a round that all drafted, [drafters]. A drafter that did not draft has nullopt,
  // and keeps its share of the weight (sleeping experts: Freund, Schapire, Singer and Warmuth
  // 1997).
  void Scored(absl::Span<const std::optional<double>> rewards);
  // kOracle: what each would be rewarded with in the next round: [drafters].
  void Foresee(absl::Span<const double> rewards);

  // Which part of the last rounds each was chosen for; they sum to 1. Even before the first.
  std::vector<double> Shares() const;

 private:
  struct Arm {
    double weight = 1;           // kHedge; they sum to 1
    double rounds = 0, sum = 0;  // faded: how often rewarded, and with what
    double foreseen = 0;         // kOracle
    double share = 0;
  };
  int32_t Choose(const std::vector<bool>& usable);
  int32_t ByWeight(const std::vector<bool>& usable);
  // The value by which kUcb1, kThompson, kFixed and kOracle choose; the highest wins. all: decayed
  // rounds of all arms.
  double Merit(const Arm& arm, int32_t index, double all);
  double Uniform();
  double Normal();
  double Gamma(double shape);

  ChoiceOptions options_;
  std::vector<Arm> arms_;
  uint64_t drawn_ = 0;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_DRAFTER_CHOICE_H_
