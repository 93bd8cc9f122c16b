#ifndef SPECFABRIC_SCHEDULER_POLICY_DRAFT_WAIT_H_
#define SPECFABRIC_SCHEDULER_POLICY_DRAFT_WAIT_H_

// One sequence's side of waiting for drafts: whether it asks in a round, what it asked for, and
// what came of it. How large a tree, and whether to wait for it, is GoodputControl's.

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "scheduler/policy/goodput.h"

namespace specfabric::scheduler {

// After max_misses consecutive misses a sequence stops asking, except now and then: after
// probe_rounds, and twice as many after each probe that is missed, up to 32 times.
struct MissLimits {
  int32_t max_misses = 2;
  int32_t probe_rounds = 32;
};

// In every round: StartRound, then at most one of OnReply, OnUnavailable, OnSkipped and OnMiss,
// then EndRound when the sequence is planned.
class DraftWait {
 public:
  // A new round. Whether a draft is to be asked for, if `order` says so: see MissLimits. The
  // order's reply_timeout sets the deadline.
  bool StartRound(const DraftOrder& order, base::Nanos now);
  void EndRound() { state_ = State::kIdle; }

  uint32_t round() const { return round_; }
  bool asked() const { return state_ != State::kIdle; }
  // Asked, and neither an answer nor a miss yet.
  bool waiting() const { return state_ == State::kWaiting; }
  base::Nanos deadline() const { return deadline_; }
  base::Nanos asked_at() const { return asked_at_; }
  const DraftOrder& order() const { return order_; }  // of this round, or the last that asked
  // Whether one of the last few rounds, which asked, came after another that did: the draft had no
  // more to catch up with than one round's tokens.
  bool CaughtUp(uint32_t round) const { return asked_ >> (round_ - round + 1) & 1; }

  // The reply of this round; returns its latency.
  base::Nanos OnReply(base::Nanos now);
  // A reply of another round; its latency if that was one of the last few.
  std::optional<base::Nanos> OnStaleReply(uint32_t round, base::Nanos now);
  void OnUnavailable() { state_ = State::kSettled; }
  // The step goes on without: nobody's fault.
  void OnSkipped() { state_ = State::kSettled; }
  // The deadline passed, or the reply was useless. Returns the time waited.
  base::Nanos OnMiss(base::Nanos now, const MissLimits& limits);

 private:
  enum class State : uint8_t { kIdle, kWaiting, kSettled };

  State state_ = State::kIdle;
  uint32_t round_ = 0;
  uint64_t asked_ = 0;  // bit n: n rounds ago
  base::Nanos asked_at_ = 0, deadline_ = 0;
  DraftOrder order_;
  // When each of the last rounds asked, by round modulo their number; -1: answered, or did not
  // ask.
  std::array<base::Nanos, 8> unanswered_ = {-1, -1, -1, -1, -1, -1, -1, -1};
  int32_t misses_ = 0;          // consecutive
  int32_t rounds_to_skip_ = 0;  // before the next probe
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_DRAFT_WAIT_H_
