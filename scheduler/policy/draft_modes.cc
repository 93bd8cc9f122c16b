#include "scheduler/policy/draft_modes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace specfabric::scheduler {
namespace {

// Steps:
constexpr int32_t kWindow = 16;
constexpr int32_t kMostCatchingUp = 64;
constexpr int32_t kSettled = 3;
constexpr int32_t kMostAtWork = 256;  // drafters, with what they were asked for before
constexpr int32_t kMostReading = 32;  // one after the other; then it is no exception
constexpr double kReading = 3;        // lost with each text that drafters have to read, but for
constexpr int32_t kFewTexts = 4;      // so many, which are read soon
// Windows:
constexpr double kLeastOfBest = 2;    // before another mode is tried
constexpr double kSureWindows = 4;    // fewer of a mode say little: its next trial comes sooner
constexpr double kLeastBetween = 24;  // times the time of a trial, to the next one
constexpr double kCaughtUp = 0.75;    // of the sequences that asked were answered
constexpr double kBudget = 0.005;     // of the time, for trials
constexpr double kNewest = 0.25;      // the weight of a window in a pace, at least; the first have
                                      // more, each than those before it, when all was new
// Drafting is over early once it yields less than this part of plain decoding, or, if it is only
// tried, of the best.
constexpr double kHopeless = 0.8;
constexpr int32_t kLeastSteps = 4;
// Plain decoding is not tried where even at this pace it would not be the best.
constexpr double kMostPace = 1.2;
// Of two modes that yield about the same, the one that asks less of drafters.
constexpr double kMarginInUse = 1.02;
constexpr double kMargin = 1.03;
// The same where drafters would first have to read the texts; and right after many of them were
// left unread, as what is expected may be wrong by that much.
constexpr double kMarginUnread = 1.05, kMarginForgotten = 1.2;

}  // namespace

// A little more or less is the same load still.
bool DraftModes::Holds(int32_t running) const {
  if (window_.load < 0) return false;
  const double least = std::ldexp(1.0, window_.load);
  return running > 0.7 * least && running < 2.6 * least;
}

bool DraftModes::Known(const Arms& arms) {
  return std::any_of(arms.of.of.begin(), arms.of.of.end(),
                     [](const Arm& arm) { return arm.windows > 0; });
}

const DraftModes::Arms& DraftModes::Nearest(int load, size_t mode) const {
  const auto used = [&](int l) { return loads_[l].of.of[mode].windows > 0; };
  return loads_[NearestLoad(load, kLoads, used).value_or(load)];
}

DraftModes::Arms& DraftModes::ArmsOf(int load) {
  Arms& arms = loads_[load];
  for (size_t m = 0; m < kDraftModes; ++m) {
    Arm& arm = arms.of.of[m];
    if (arm.windows > 0) continue;
    const Arms& nearest = Nearest(load, m);
    if (!Known(arms)) arms.best = nearest.best;
    arm = nearest.of.of[m];
    arm.windows = std::min(arm.windows, 1.0);
  }
  return arms;
}

DraftMode DraftModes::Best(int load) const {
  const Arms& arms = loads_[load];
  const double unread = MarginUnread(load);
  DraftMode best = DraftMode::kNone;
  for (const DraftMode mode : {DraftMode::kJustInTime, DraftMode::kAhead}) {
    // The one that is in use need not win by the margin again.
    const double margin = mode == arms.best ? kMarginInUse : caught_up_ ? kMargin : unread;
    if (Yield(arms, mode) > margin * Yield(arms, best)) best = mode;
  }
  return best;
}

// A gain of so much has been missed since then for as long as reading takes to pay: who waits until
// then loses no more than twice what the best choice would.
double DraftModes::MarginUnread(int load) const {
  if (load + 1 < forgotten_load_) return kMarginUnread;
  const double since = std::max(1.0, static_cast<double>(busy_ - forgotten_at_));
  return std::clamp(1 + reading_cost_ / since, kMarginUnread, kMarginForgotten);
}

bool DraftModes::Exceptional(bool reading) const {
  return reading && window_.mode != DraftMode::kNone && reading_steps_ < kMostReading;
}

void DraftModes::Choose(int32_t running, const ByMode<double>& rates, bool reading) {
  const DraftMode before = window_.mode;
  const bool exceptional = Exceptional(reading);
  const bool after_trial = window_.trial;  // of which drafters may still be at work
  const int load = LoadOf(running);
  rates_ = rates;
  Arms& arms = ArmsOf(load);
  arms.best = Best(load);
  window_ = {.mode = exceptional ? before : arms.best, .load = load, .over = false};
  for (const DraftMode mode : {DraftMode::kJustInTime, DraftMode::kAhead, DraftMode::kNone}) {
    if (exceptional || after_trial || arms.of[arms.best].windows < kLeastOfBest) break;
    if (mode == arms.best || busy_ < next_try_[mode]) continue;
    if (mode != DraftMode::kNone && !caught_up_ && MarginUnread(load) > kMarginUnread) continue;
    // What plain decoding yields is always known well.
    if (mode == DraftMode::kNone && kMostPace * rates[mode] < Yield(arms, arms.best)) continue;
    window_.mode = mode;
    window_.trial = true;
    break;
  }
  // What it does to steps is not known: that says nothing of steps in other modes.
  window_.trial |= Known(arms) && arms.of[window_.mode].windows == 0;
  const bool drafting = window_.mode != DraftMode::kNone;
  if (drafting && !caught_up_) {
    window_.phase = Phase::kCatchingUp;
  } else if (window_.mode != before || arms.of[window_.mode].windows == 0) {
    window_.phase = Phase::kSettling;
  }
  window_.stops_drafters = !drafting && before == DraftMode::kAhead;
  if (!drafting) ForgetTexts(running, load);
}

DraftModes::Use DraftModes::Current() const {
  Use use = {.mode = window_.mode, .trial = window_.trial};
  if (use.mode == DraftMode::kNone) {
    use.catches_up = window_.phase == Phase::kSettling;
    // A request is what tells a draft worker to stop drafting ahead.
    if (window_.stops_drafters && window_.steps == 0) {
      use.mode = DraftMode::kJustInTime;
      use.one_level = true;
    }
    return use;
  }
  use.one_level = window_.phase == Phase::kCatchingUp;
  use.catches_up = window_.phase != Phase::kMeasuring;
  use.must_wait =
      window_.phase == Phase::kSettling || (!use.one_level && use.mode == DraftMode::kJustInTime);
  return use;
}

// Before drafters are asked again they must read the texts: a trial costs as much more.
void DraftModes::ForgetTexts(int32_t running, int load) {
  if (!std::exchange(caught_up_, false) || rates_[DraftMode::kNone] <= 0) return;
  const double step = running / rates_[DraftMode::kNone];  // ns
  reading_cost_ = kReading * std::max(0, running - kFewTexts) * step;
  forgotten_at_ = busy_;
  forgotten_load_ = load;
}

bool DraftModes::AtRest() const {
  return window_.mode != DraftMode::kNone || unanswered_ == 0 || window_.steps >= kMostAtWork;
}

void DraftModes::NextPhase() {
  window_.steps = 0;
  window_.phase = window_.phase == Phase::kCatchingUp ? Phase::kSettling : Phase::kMeasuring;
}

void DraftModes::OnStep(const ModeStep& step) {
  const int32_t asked = asked_, replied = replied_, in_time = std::min(in_time_, asked_);
  unanswered_ = std::max(0, (asked > 0 ? asked : unanswered_) - replied - refused_);
  asked_ = replied_ = in_time_ = refused_ = 0;
  if (window_.load < 0 || step.running == 0) return;
  // The part of the expected output that the replies which came make possible.
  const double came = asked > 0 ? static_cast<double>(in_time) / asked : 1;
  const double output = (1 + came * step.gain) / (1 + step.gain);
  const double value =
      output * static_cast<double>(step.time + (asked > 0 ? step.delay : base::Nanos{0}));
  const auto elapsed = static_cast<double>(step.elapsed);
  busy_ += step.elapsed;
  ++steps_[window_.mode];
  const bool exceptional = Exceptional(step.reading);
  reading_steps_ = step.reading ? reading_steps_ + 1 : 0;
  if (exceptional && window_.phase != Phase::kCatchingUp) return;
  ++window_.steps;
  window_.all_time += elapsed;
  const Arms& arms = loads_[window_.load];
  const double best = Yield(arms, arms.best);
  if (window_.trial) {
    ++trial_steps_;
    const DraftMode as = window_.phase == Phase::kCatchingUp ? DraftMode::kNone : window_.mode;
    if (best > 0) window_.lost += elapsed - value * rates_[as] / best;
  }
  switch (window_.phase) {
    case Phase::kCatchingUp:
      caught_up_ = replied >= kCaughtUp * asked;
      if (caught_up_) return NextPhase();
      if (window_.steps >= kMostCatchingUp) EndWindow();
      return;
    case Phase::kSettling:
      if (window_.steps >= kSettled && AtRest()) NextPhase();
      return;
    case Phase::kMeasuring:
      break;
  }
  window_.value += value;
  window_.time += elapsed;
  // What plain decoding yields is known, if only as it is expected.
  const double other = std::max(window_.trial ? best : 0, Yield(arms, DraftMode::kNone));
  const bool hopeless = window_.mode != DraftMode::kNone && window_.steps >= kLeastSteps &&
                        rates_[window_.mode] * window_.value < kHopeless * other * window_.time;
  if (window_.steps >= kWindow || hopeless) EndWindow();
}

void DraftModes::EndWindow() {
  Arm& arm = loads_[window_.load].of[window_.mode];
  if (window_.time > 0) {
    arm.windows += 1;
    arm.pace +=
        std::max(kNewest, 2 / (1 + arm.windows)) * (window_.value / window_.time - arm.pace);
  } else {
    // Drafters did not catch up, which they would not in another mode or with more texts either.
    for (int load = window_.load; load < kLoads; ++load) {
      if (load > window_.load && !Known(loads_[load])) continue;
      ByMode<Arm>& of = loads_[load].of;
      of[DraftMode::kJustInTime] = of[DraftMode::kAhead] = {.pace = 0, .windows = 0};
    }
  }
  if (window_.trial) {
    const double sure = window_.time > 0 ? std::min(1.0, arm.windows / kSureWindows) : 1;
    next_try_[window_.mode] =
        busy_ + static_cast<base::Nanos>(
                    std::max(window_.lost / kBudget, sure * kLeastBetween * window_.all_time));
  }
  window_.over = true;
}

DraftModeCounts DraftModes::counts() const {
  DraftModeCounts counts = {.steps = steps_, .trial_steps = trial_steps_, .yields = {}};
  if (window_.load < 0 || rates_[DraftMode::kNone] <= 0) return counts;
  for (size_t m = 0; m < kDraftModes; ++m) {
    counts.yields.of[m] =
        Yield(loads_[window_.load], static_cast<DraftMode>(m)) / rates_[DraftMode::kNone];
  }
  return counts;
}

}  // namespace specfabric::scheduler
