#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_MODES_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_MODES_H_

// How a group uses its drafters: not at all, just in time, or with drafting ahead. GoodputControl
// expects a rate of each, in tokens a second, from what it has learned of drafts' gains and of the
// times of steps and replies in that mode. What such an expectation leaves out (a host's work,
// other users of a device, waits that cohorts hide, replies that do not come) is measured here: the
// pace of a mode is
//
//   sum over steps of the value of (expected time of the step) / sum of their elapsed times,
//
// the value being the part of the expected output that the replies which came make possible. Texts
// differ far more in what drafts gain than modes do, and a pace does not depend on the text. Paces
// are kept apart for each load (powers of two of sequences), and a mode that is new at one starts
// with what is known of it at the nearest.
//
// Time is cut into windows of kWindow steps, all of one mode: that of the highest rate times pace.
// Another one is tried for a window now and then, the more rarely the more that costs: so that
// trials cost one part in a hundred of the time. That is the time of steps: while a group is idle,
// nothing becomes due. None begins before the best mode is known from more than one window, right
// after another trial, or while drafters read prompts; steps beside which they do are not measured,
// unless that never ends. Before a trial is measured, drafters read what they were not asked for
// (kCatchingUp: they are asked for one level, and no step waits), and show how long their replies
// take (kSettling: steps wait); plain decoding is measured once they have finished what they were
// asked for. Beside plain decoding drafters read nothing, so that it costs time to go back to them:
// the sooner after they were last used with many texts, the larger a gain must be that pays for
// that.
//
// Owned by GoodputControl; one thread.

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "scheduler/policy/loads.h"

namespace specfabric::scheduler {

enum class DraftMode : uint8_t { kNone, kJustInTime, kAhead };
constexpr int kDraftModes = 3;
template <typename T>
struct ByMode {
  std::array<T, kDraftModes> of = {};
  T& operator[](DraftMode mode) { return of[static_cast<size_t>(mode)]; }
  const T& operator[](DraftMode mode) const { return of[static_cast<size_t>(mode)]; }
};

// A step that has ended.
struct ModeStep {
  int32_t running = 0;      // sequences that decode, in this step or not
  bool reading = false;     // drafters read the prompt of one of them
  base::Nanos elapsed = 0;  // since the step before it ended
  // As GoodputControl expects: the step's own time; how long it waits for replies; draft tokens
  // accepted, a sequence that decodes, if all replies come in time.
  base::Nanos time = 0, delay = 0;
  double gain = 0;
};

struct DraftModeCounts {
  ByMode<uint64_t> steps;    // in each mode, beside which some sequence speculated
  uint64_t trial_steps = 0;  // those of them in a mode that was tried
  // Tokens a second over plain decoding's that each mode is expected to yield at the load of the
  // last step, paces included; 0: not known.
  ByMode<double> yields;
};

class DraftModes {
 public:
  // What the rounds that begin now do.
  struct Use {
    DraftMode mode = DraftMode::kNone;
    bool one_level = false;   // is all that is asked for
    bool must_wait = false;   // for the replies
    bool catches_up = false;  // drafters, perhaps, still
    bool trial = false;
  };
  // Whether a window is over, or was of another load, so that Choose is called before Current.
  bool Due(int32_t running) const { return window_.over || !Holds(running); }
  // Begins a window. rates: expected of each mode in tokens a nanosecond, without its pace.
  // reading: as in ModeStep.
  void Choose(int32_t running, const ByMode<double>& rates, bool reading);
  Use Current() const;
  // A sequence has asked. A reply has come, before its step was planned or later.
  void OnAsked() { ++asked_; }
  void OnReply(bool in_time) {
    ++replied_;
    in_time_ += in_time ? 1 : 0;
  }
  // No reply will come, or one has that tells nothing.
  void OnNoReply() { ++refused_; }
  void OnStep(const ModeStep& step);
  // What is expected has changed: a window without drafters ends.
  void Reconsider() { window_.over |= window_.mode == DraftMode::kNone && !window_.trial; }
  // No drafter is left. Those that come have yet to read the texts.
  void Restart() {
    window_ = {};
    caught_up_ = false;
  }
  // Whether a step, beside which drafters read prompts or do not, tells little of others.
  bool Exceptional(bool reading) const;
  DraftModeCounts counts() const;

 private:
  enum class Phase : uint8_t { kCatchingUp, kSettling, kMeasuring };
  struct Arm {
    double pace = 1;
    double windows = 0;  // that count in it
  };
  // Of a load.
  struct Arms {
    ByMode<Arm> of;
    DraftMode best = DraftMode::kJustInTime;
  };
  struct Window {
    DraftMode mode = DraftMode::kJustInTime;
    int load = -1;
    bool over = true;
    bool trial = false;
    bool stops_drafters = false;  // that draft ahead
    Phase phase = Phase::kMeasuring;
    int32_t steps = 0;           // of this phase
    double value = 0, time = 0;  // of the steps that are measured
    double all_time = 0;         // of all steps
    double lost = 0;             // by a trial: the time that the best mode would not have needed
  };

  bool Holds(int32_t running) const;
  static bool Known(const Arms& arms);
  // Of this load, or else of the nearest, at which the mode was in use.
  const Arms& Nearest(int load, size_t mode) const;
  Arms& ArmsOf(int load);
  DraftMode Best(int load) const;
  double Yield(const Arms& arms, DraftMode mode) const { return rates_[mode] * arms.of[mode].pace; }
  // By which drafters that have yet to read the texts must be better.
  double MarginUnread(int load) const;
  void ForgetTexts(int32_t running, int load);
  // Whether plain decoding can be measured.
  bool AtRest() const;
  void NextPhase();
  void EndWindow();

  std::array<Arms, kLoads> loads_ = {};
  Window window_;
  ByMode<double> rates_;    // as the window began
  bool caught_up_ = false;  // drafters have read the texts
  // They were last left unread at this load and this time, in busy_; at this load, half of it or a
  // higher one it takes so much time to read them again.
  int forgotten_load_ = 0;
  base::Nanos forgotten_at_ = 0;
  double reading_cost_ = 0;
  base::Nanos busy_ = 0;          // all steps' elapsed times
  ByMode<base::Nanos> next_try_;  // in busy_, where it is not the best
  int32_t unanswered_ = 0;        // requests, of the last step that asked
  int32_t reading_steps_ = 0;     // one after the other
  int32_t asked_ = 0, replied_ = 0, in_time_ = 0, refused_ = 0;
  ByMode<uint64_t> steps_;  // see DraftModeCounts
  uint64_t trial_steps_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_MODES_H_
