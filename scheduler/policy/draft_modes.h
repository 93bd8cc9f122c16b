#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_MODES_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_MODES_H_

// How a group uses its drafters: not at all, just in time, or with drafting ahead. What each yields
// is measured, since what it costs cannot be told from the times of replies and steps: a draft
// worker may run on its target's own device or cores, and be in the way of every step while it
// drafts ahead.
//
// Time is cut into windows of kWindow steps, all of one mode. The yield of a window is
//
//   sum over its steps of (tokens / running * plain) / sum of their elapsed times,
//
// tokens: the output that was expected of the step, which varies less than what came; running:
// sequences; plain: what StepTime predicts for a step of all of them without draft tokens. So it is
// the tokens a second over those of plain decoding, whatever the load and the rows of prompts, and
// windows of different rounds compare. Yields are kept apart for each load (powers of two of
// sequences), and a load that is new starts with what is known of the nearest.
//
// The mode of the best yield is used. Another one is tried for a window now and then, the more
// rarely the more that costs: so that trials cost one part in a hundred of the time. Before a
// trial is measured, drafters read what they were not asked for (kCatchingUp: they are asked for
// one level, and no step waits), and show how long their replies take (kSettling: steps wait).
//
// Owned by GoodputControl; one thread; time is an argument.

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace specfabric::scheduler {

enum class DraftMode : uint8_t { kNone, kJustInTime, kAhead };
constexpr int kDraftModes = 3;

// A step that has ended.
struct ModeStep {
  int32_t running = 0;      // sequences that decode, in this step or not
  double tokens = 0;        // expected output of the step
  base::Nanos plain = 0;    // the time of a step of all `running` without draft tokens
  base::Nanos elapsed = 0;  // since the step before it ended
};

struct DraftModeCounts {
  std::array<uint64_t, kDraftModes> steps = {};  // in each mode, beside which some speculated
  uint64_t trial_steps = 0;                      // those of them in a mode that was tried
  // What each mode yields at the load of the last step; 0: not known.
  std::array<double, kDraftModes> yields = {};
};

class DraftModes {
 public:
  // What the rounds that begin now do.
  struct Use {
    DraftMode mode = DraftMode::kNone;
    bool one_level = false;   // is all that is asked for
    bool must_wait = false;   // for the replies
    bool catches_up = false;  // drafters, perhaps, still
  };
  Use Current(int32_t running, base::Nanos now);
  // Sequences that asked since the last step, and in-time replies.
  void OnAsked() { ++asked_; }
  void OnReply() { ++replied_; }
  void OnStep(const ModeStep& step, base::Nanos now);
  DraftModeCounts counts() const;

 private:
  static constexpr int kLoads = 12;
  enum class Phase : uint8_t { kCatchingUp, kSettling, kMeasuring };
  struct Arm {
    double yield = 0;
    double windows = 0;        // that count in it
    base::Nanos next_try = 0;  // where it is not the best
  };
  // Of a load.
  struct Arms {
    std::array<Arm, kDraftModes> of = {};
    DraftMode best = DraftMode::kJustInTime;
    Arm& operator[](DraftMode mode) { return of[static_cast<size_t>(mode)]; }
    const Arm& operator[](DraftMode mode) const { return of[static_cast<size_t>(mode)]; }
  };
  struct Window {
    DraftMode mode = DraftMode::kJustInTime;
    int load = -1;
    bool trial = false;
    Phase phase = Phase::kMeasuring;
    int32_t steps = 0;                   // of this phase
    double value = 0, time = 0;          // of the steps that are measured
    double all_value = 0, all_time = 0;  // of all steps
  };

  static int LoadOf(int32_t running);
  bool Holds(int32_t running) const;
  static bool Known(const Arms& arms);
  Arms& ArmsOf(int load);
  static void ChooseBest(Arms* arms);
  void Begin(int load, base::Nanos now);
  void NextPhase();
  void EndWindow(base::Nanos now);

  std::array<Arms, kLoads> loads_ = {};
  Window window_;
  int32_t asked_ = 0, replied_ = 0;
  std::array<uint64_t, kDraftModes> steps_ = {};  // see DraftModeCounts
  uint64_t trial_steps_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_MODES_H_
