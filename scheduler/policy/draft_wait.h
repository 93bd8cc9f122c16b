#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_WAIT_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_WAIT_H_

// The state of one sequence's draft request: whether it asks in a round, what it asked for, when,
// and what came of it. Part of Sequence. Changed by DraftRounds; StepInFlight and, on preemption,
// Admission end its round. How large a tree is asked for is GoodputControl's decision, whether a
// step waits for it Pacing's.

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "scheduler/policy/goodput.h"

namespace specfabric::scheduler {

// After max_misses consecutive misses a sequence asks only in probes: the first after probe_rounds
// rounds, each later one after twice as many if the one before it was missed, up to 32 times
// probe_rounds.
struct MissLimits {
  int32_t max_misses = 2;
  int32_t probe_rounds = 32;
};

// In every round: StartRound; then OnReply, OnUnavailable, OnSkipped or OnMiss; after one of the
// last three OnReply may still follow until the sequence is planned; EndRound when it is planned or
// preempted.
class DraftWait {
 public:
  // Starts a new round. Returns whether the sequence asks for a draft: if order.ask, unless it
  // skips this round after misses (see MissLimits). order.reply_timeout sets the deadline.
  bool StartRound(const DraftOrder& order, base::Nanos now);
  void EndRound() { state_ = State::kIdle; }

  uint32_t round() const { return round_; }
  bool asked() const { return state_ != State::kIdle; }
  // In one of the last 64 rounds, or is about to for the first time.
  bool asks_of_late() const { return asked_ != 0 || round_ == 0; }
  // Asked, and neither an answer nor a miss yet.
  bool waiting() const { return state_ == State::kWaiting; }
  // The drafter may still be at work on this round's reply, waited for or not.
  bool unanswered() const { return unanswered_[round_ % unanswered_.size()] >= 0; }
  base::Nanos deadline() const { return deadline_; }
  base::Nanos asked_at() const { return asked_at_; }
  const DraftOrder& order() const { return order_; }  // of this round, or the last that asked
  // For one of the last few rounds, which asked: whether the round before it asked too, so that the
  // drafter had to read no more than one round's tokens.
  bool CaughtUp(uint32_t round) const { return asked_ >> (round_ - round + 1) & 1; }

  // The reply of this round; returns its latency.
  base::Nanos OnReply(base::Nanos now);
  // A reply of another round; returns its latency if that was one of the last few.
  std::optional<base::Nanos> OnStaleReply(uint32_t round, base::Nanos now);
  void OnUnavailable();
  // The step does not wait for the reply: no miss. Returns the time waited.
  base::Nanos OnSkipped(base::Nanos now);
  // The deadline passed, or the reply was useless. Returns the time waited.
  base::Nanos OnMiss(base::Nanos now, const MissLimits& limits);
  // In this round, until the reply came or was given up.
  base::Nanos waited() const { return waited_; }

 private:
  enum class State : uint8_t { kIdle, kWaiting, kSettled };

  State state_ = State::kIdle;
  uint32_t round_ = 0;
  uint64_t asked_ = 0;  // bit n: it asked n rounds ago
  base::Nanos asked_at_ = 0, deadline_ = 0, waited_ = 0;
  DraftOrder order_;
  // When each of the last 8 rounds asked, by round % 8; -1: it was answered or did not ask.
  std::array<base::Nanos, 8> unanswered_ = {-1, -1, -1, -1, -1, -1, -1, -1};
  int32_t misses_ = 0;          // consecutive
  int32_t rounds_to_skip_ = 0;  // before the next probe
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_WAIT_H_
