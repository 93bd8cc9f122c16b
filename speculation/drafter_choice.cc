#include "speculation/drafter_choice.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "sampling/philox.h"
#include "sampling/uniform.h"

namespace specfabric::speculation {
namespace {

constexpr const char* kNames[] = {"hedge", "ucb1", "thompson", "fixed", "oracle"};
constexpr uint64_t kKey = 0x64726166746572;  // so that no sequence's seed gives the same numbers

bool Usable(const std::vector<bool>& usable, size_t arm) { return usable.empty() || usable[arm]; }

}  // namespace

const char* Name(ChoicePolicy policy) { return kNames[static_cast<size_t>(policy)]; }

absl::StatusOr<ChoicePolicy> ParseChoicePolicy(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<ChoicePolicy>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("drafter choice '", std::string(name),
                   "': allowed are hedge, ucb1, thompson, fixed and oracle"));
}

DrafterChoice::DrafterChoice(const ChoiceOptions& options, int32_t drafters) : options_(options) {
  assert(options.memory >= 1 && options.score_every >= 1);
  for (int32_t i = 0; i < drafters; ++i) AddDrafter();
}

void DrafterChoice::AddDrafter() {
  const double even = 1.0 / (drafters() + 1);
  for (Arm& arm : arms_) {
    arm.weight *= 1 - even;
    arm.share *= 1 - even;
  }
  arms_.push_back({.weight = even, .share = even});
}

DrafterChoice::Round DrafterChoice::Next(const std::vector<bool>& usable) {
  Round round = {.drafter = Choose(usable)};
  const double part = 1 / options_.memory;
  for (Arm& arm : arms_) arm.share *= 1 - part;
  arms_[round.drafter].share += part;
  if (options_.policy == ChoicePolicy::kHedge && drafters() > 1) {
    round.score_all = Uniform() * options_.score_every < 1;
  }
  return round;
}

int32_t DrafterChoice::Choose(const std::vector<bool>& usable) {
  if (options_.policy == ChoicePolicy::kHedge) return ByWeight(usable);
  double all = 0;
  for (const Arm& arm : arms_) all += arm.rounds;
  int32_t best = -1;
  double highest = 0;
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (!Usable(usable, i)) continue;
    const double merit = Merit(arms_[i], static_cast<int32_t>(i), all);
    if (best >= 0 && merit <= highest) continue;
    best = static_cast<int32_t>(i);
    highest = merit;
  }
  assert(best >= 0);
  return best;
}

double DrafterChoice::Merit(const Arm& arm, int32_t index, double all) {
  switch (options_.policy) {
    case ChoicePolicy::kUcb1:
      // What has not been tried for long has faded, so that it is tried again.
      if (arm.rounds < 0.5) return std::numeric_limits<double>::infinity();
      return arm.sum / arm.rounds +
             options_.radius * std::sqrt(2 * std::log(std::max(all, 2.0)) / arm.rounds);
    case ChoicePolicy::kThompson: {
      const double won = Gamma(1 + arm.sum);
      return won / (won + Gamma(1 + arm.rounds - arm.sum));  // Beta(1 + won, 1 + lost)
    }
    case ChoicePolicy::kFixed:
      return index == options_.fixed ? 1 : 0;
    case ChoicePolicy::kOracle:
      return arm.foreseen;
    case ChoicePolicy::kHedge:
      break;
  }
  return arm.weight;
}

int32_t DrafterChoice::ByWeight(const std::vector<bool>& usable) {
  double total = 0;
  for (size_t i = 0; i < arms_.size(); ++i) total += Usable(usable, i) ? arms_[i].weight : 0;
  double left = Uniform() * total;
  int32_t last = -1;
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (!Usable(usable, i)) continue;
    last = static_cast<int32_t>(i);
    left -= arms_[i].weight;
    if (left < 0) break;
  }
  assert(last >= 0);
  return last;
}

void DrafterChoice::Rewarded(int32_t drafter, double reward) {
  const double kept = 1 - 1 / options_.memory;
  for (Arm& arm : arms_) {
    arm.rounds *= kept;
    arm.sum *= kept;
  }
  arms_[drafter].rounds += 1;
  arms_[drafter].sum += std::clamp(reward, 0.0, 1.0);
}

void DrafterChoice::Scored(absl::Span<const std::optional<double>> rewards) {
  assert(rewards.size() == arms_.size());
  double before = 0, after = 0;  // of those that drafted
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (!rewards[i]) continue;
    before += arms_[i].weight;
    arms_[i].weight *= std::exp(-options_.rate * (1 - std::clamp(*rewards[i], 0.0, 1.0)));
    after += arms_[i].weight;
  }
  for (size_t i = 0; i < arms_.size(); ++i) {
    double& weight = arms_[i].weight;
    if (rewards[i]) weight *= before / after;
    weight = (1 - options_.share) * weight + options_.share / drafters();
  }
}

void DrafterChoice::Reseed(uint64_t seed) {
  options_.seed = seed;
  drawn_ = 0;
}

void DrafterChoice::Foresee(absl::Span<const double> rewards) {
  assert(rewards.size() == arms_.size());
  for (size_t i = 0; i < arms_.size(); ++i) arms_[i].foreseen = rewards[i];
}

std::vector<double> DrafterChoice::Shares() const {
  std::vector<double> shares;
  for (const Arm& arm : arms_) shares.push_back(arm.share);
  return shares;
}

double DrafterChoice::Uniform() {
  const sampling::DrawSite site = {.purpose = sampling::Purpose::kDraft,
                                   .position = static_cast<uint32_t>(drawn_ >> 32)};
  const auto index = static_cast<uint32_t>(drawn_++);
  return sampling::UniformFromWord(
      sampling::PhiloxWord(base::Mix64(options_.seed ^ kKey), site, index));
}

// Box and Muller 1958.
double DrafterChoice::Normal() {
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

// Marsaglia and Tsang 2000; shape at least 1.
double DrafterChoice::Gamma(double shape) {
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = Normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace specfabric::speculation
