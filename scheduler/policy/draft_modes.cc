#include "scheduler/policy/draft_modes.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specfabric::scheduler {
namespace {

constexpr int32_t kWindow = 16;          // steps
constexpr int32_t kMostCatchingUp = 32;  // steps
constexpr int32_t kSettled = 3;          // steps
constexpr double kCaughtUp = 0.75;       // of the sequences that asked were answered in time
constexpr double kBudget = 0.01;         // of the time, for trials
constexpr double kNewest = 0.35;         // the weight of a window in a yield, at least
// A trial is over early once it yields less than this part of the best.
constexpr double kHopeless = 0.8;
constexpr int32_t kLeastSteps = 4;
// Of two modes that yield about the same, the one that asks less of drafters.
constexpr double kMargin = 1.03;

}  // namespace

int DraftModes::LoadOf(int32_t running) {
  const auto width = std::bit_width(static_cast<uint32_t>(std::max(1, running)));
  return std::min(static_cast<int>(width) - 1, kLoads - 1);
}

// A little more or less is the same load still.
bool DraftModes::Holds(int32_t running) const {
  if (window_.load < 0) return false;
  const double least = std::ldexp(1.0, window_.load);
  return running > 0.7 * least && running < 2.6 * least;
}

bool DraftModes::Known(const Arms& arms) {
  return std::any_of(arms.of.begin(), arms.of.end(),
                     [](const Arm& arm) { return arm.windows > 0; });
}

DraftModes::Arms& DraftModes::ArmsOf(int load) {
  Arms& arms = loads_[load];
  for (int away = 1; away < kLoads && !Known(arms); ++away) {
    for (const int near : {load - away, load + away}) {
      if (near < 0 || near >= kLoads || !Known(loads_[near])) continue;
      arms = loads_[near];
      for (Arm& arm : arms.of) arm.windows = std::min(arm.windows, 1.0);
      break;
    }
  }
  return arms;
}

void DraftModes::ChooseBest(Arms* arms) {
  for (int m = 0; m < kDraftModes; ++m) {
    const auto mode = static_cast<DraftMode>(m);
    const Arm &arm = (*arms)[mode], &best = (*arms)[arms->best];
    if (arm.windows == 0) continue;
    const bool better =
        mode < arms->best ? arm.yield >= best.yield : arm.yield > kMargin * best.yield;
    if (better) arms->best = mode;
  }
}

void DraftModes::Begin(int load, base::Nanos now) {
  const DraftMode before = window_.mode;
  const bool first = window_.load < 0;
  Arms& arms = ArmsOf(load);
  window_ = {.mode = arms.best, .load = load};
  const DraftMode best = window_.mode;
  for (const DraftMode mode : {DraftMode::kJustInTime, DraftMode::kAhead, DraftMode::kNone}) {
    const Arm& arm = arms[mode];
    if (mode == best || now < arm.next_try || !Known(arms)) continue;
    window_.mode = mode;
    window_.trial = true;
    break;
  }
  const bool unknown = arms[window_.mode].windows == 0;
  if (window_.mode == before && !first && !unknown) return;
  window_.phase = window_.mode != DraftMode::kNone && (before == DraftMode::kNone || first)
                      ? Phase::kCatchingUp
                      : Phase::kSettling;
}

DraftModes::Use DraftModes::Current(int32_t running, base::Nanos now) {
  if (!Holds(running)) Begin(LoadOf(running), now);
  Use use = {.mode = window_.mode};
  if (use.mode == DraftMode::kNone) {
    // A request is what tells a draft worker to stop drafting ahead.
    if (window_.phase == Phase::kSettling && window_.steps == 0) {
      return {.mode = DraftMode::kJustInTime, .one_level = true, .catches_up = true};
    }
    return use;
  }
  use.one_level = window_.phase == Phase::kCatchingUp;
  use.catches_up = window_.phase != Phase::kMeasuring;
  use.must_wait =
      window_.phase == Phase::kSettling || (!use.one_level && use.mode == DraftMode::kJustInTime);
  return use;
}

void DraftModes::NextPhase() {
  window_.steps = 0;
  window_.phase = window_.phase == Phase::kCatchingUp ? Phase::kSettling : Phase::kMeasuring;
}

void DraftModes::OnStep(const ModeStep& step, base::Nanos now) {
  const int32_t asked = asked_, replied = replied_;
  asked_ = replied_ = 0;
  if (window_.load < 0 || step.running == 0) return;
  const double value = step.tokens / step.running * static_cast<double>(step.plain);
  const auto elapsed = static_cast<double>(step.elapsed);
  ++steps_[static_cast<size_t>(window_.mode)];
  trial_steps_ += window_.trial ? 1 : 0;
  ++window_.steps;
  window_.all_value += value;
  window_.all_time += elapsed;
  switch (window_.phase) {
    case Phase::kCatchingUp:
      if (replied >= kCaughtUp * asked || window_.steps >= kMostCatchingUp) NextPhase();
      return;
    case Phase::kSettling:
      if (window_.steps >= kSettled) NextPhase();
      return;
    case Phase::kMeasuring:
      break;
  }
  window_.value += value;
  window_.time += elapsed;
  const Arms& arms = loads_[window_.load];
  const double best = arms[arms.best].yield;
  const bool hopeless = window_.steps >= kLeastSteps && window_.trial &&
                        window_.value < kHopeless * best * window_.time;
  if (window_.steps >= kWindow || hopeless) EndWindow(now);
}

DraftModeCounts DraftModes::counts() const {
  DraftModeCounts counts = {.steps = steps_, .trial_steps = trial_steps_};
  if (window_.load < 0) return counts;
  for (size_t m = 0; m < counts.yields.size(); ++m) {
    counts.yields[m] = loads_[window_.load].of[m].yield;
  }
  return counts;
}

void DraftModes::EndWindow(base::Nanos now) {
  const Window window = window_;
  Arms& arms = loads_[window.load];
  Arm& arm = arms[window.mode];
  const double yield = window.value / window.time;
  if (!Known(arms)) {
    // Plain decoding yields 1, as far as what it takes is known.
    const double lost = std::max(0.0, 1 - 1 / yield) * window.time;
    arms[DraftMode::kNone] = {
        .yield = 1, .windows = 0.5, .next_try = now + static_cast<base::Nanos>(lost / kBudget)};
  }
  arm.windows += 1;
  arm.yield += std::max(kNewest, 1 / arm.windows) * (yield - arm.yield);
  ChooseBest(&arms);
  const double best = arms[arms.best].yield;
  if (window.trial) {
    // What it took beyond the time in which the best mode would have yielded as much.
    const double lost = std::max(window.all_time - window.all_value / best, 0.0);
    arm.next_try = now + static_cast<base::Nanos>(std::max(lost / kBudget, 8 * window.all_time));
  }
  Begin(window.load, now);
}

}  // namespace specfabric::scheduler
