#ifndef SPECFABRIC_SCHEDULER_DRAFT_WAIT_H_
#define SPECFABRIC_SCHEDULER_DRAFT_WAIT_H_

// Whether a sequence asks for a draft in a round, and how long it waits for it.

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "scheduler/scheduler.h"

namespace specfabric::scheduler {

// Smoothed time from asking for a draft to its reply.
class ReplyLatency {
 public:
  void Observe(base::Nanos latency);
  // Twice the smoothed latency within the options' bounds; the upper bound before any reply.
  base::Nanos Wait(const SchedulerOptions& options) const;

 private:
  std::optional<base::Nanos> smoothed_;
};

// One sequence's side of it. In every round: StartRound, then at most one of OnReply, OnUnavailable
// and OnMiss, then EndRound when the sequence is planned.
class DraftWait {
 public:
  explicit DraftWait(const ReplyLatency& prior = {}) : latency_(prior) {}

  // A new round. `useful`: the sequence could do with a draft. Returns the deadline if one is to be
  // asked for: not after max_misses consecutive misses, except every probe_rounds rounds.
  std::optional<base::Nanos> StartRound(bool useful, base::Nanos now,
                                        const SchedulerOptions& options);
  void EndRound() { state_ = State::kIdle; }

  uint32_t round() const { return round_; }
  bool asked() const { return state_ != State::kIdle; }
  // Asked, and neither an answer nor a miss yet.
  bool waiting() const { return state_ == State::kWaiting; }
  base::Nanos deadline() const { return deadline_; }

  // The reply of this round; returns its latency.
  base::Nanos OnReply(base::Nanos now);
  // A reply of another round; its latency if that was the last round missed.
  std::optional<base::Nanos> OnStaleReply(uint32_t round, base::Nanos now);
  void OnUnavailable() { state_ = State::kSettled; }
  // The deadline passed, or the reply was useless. Returns the time waited, which the latency
  // cannot have been below.
  base::Nanos OnMiss(base::Nanos now, const SchedulerOptions& options);

 private:
  enum class State : uint8_t { kIdle, kWaiting, kSettled };

  State state_ = State::kIdle;
  uint32_t round_ = 0;
  base::Nanos asked_at_ = 0;
  base::Nanos deadline_ = 0;
  uint32_t missed_round_ = 0;
  int32_t misses_ = 0;          // consecutive
  int32_t rounds_to_skip_ = 0;  // before the next probe
  ReplyLatency latency_;
  base::Nanos missed_asked_at_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_DRAFT_WAIT_H_
