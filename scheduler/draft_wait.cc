#include "scheduler/draft_wait.h"

#include <algorithm>

namespace specfabric::scheduler {

void ReplyLatency::Observe(base::Nanos latency) {
  // As TCP smooths round trips (RFC 6298): an eighth of what is new.
  smoothed_ = smoothed_ ? *smoothed_ + (latency - *smoothed_) / 8 : latency;
}

base::Nanos ReplyLatency::Wait(const SchedulerOptions& options) const {
  if (!smoothed_ || *smoothed_ > options.max_draft_wait) return options.max_draft_wait;
  return std::clamp(2 * *smoothed_, options.min_draft_wait, options.max_draft_wait);
}

std::optional<base::Nanos> DraftWait::StartRound(bool useful, base::Nanos now,
                                                 const SchedulerOptions& options) {
  ++round_;
  state_ = State::kIdle;
  if (!useful) return std::nullopt;
  if (rounds_to_skip_ > 0) {
    --rounds_to_skip_;
    return std::nullopt;
  }
  state_ = State::kWaiting;
  asked_at_ = now;
  deadline_ = now + latency_.Wait(options);
  return deadline_;
}

base::Nanos DraftWait::OnReply(base::Nanos now) {
  state_ = State::kSettled;
  misses_ = 0;
  const base::Nanos latency = now - asked_at_;
  latency_.Observe(latency);
  return latency;
}

std::optional<base::Nanos> DraftWait::OnStaleReply(uint32_t round, base::Nanos now) {
  // Without this a sequence that waits too briefly would never learn how long it should wait.
  if (round != missed_round_ || missed_round_ == 0) return std::nullopt;
  missed_round_ = 0;
  const base::Nanos latency = now - missed_asked_at_;
  latency_.Observe(latency);
  return latency;
}

base::Nanos DraftWait::OnMiss(base::Nanos now, const SchedulerOptions& options) {
  state_ = State::kSettled;
  missed_round_ = round_;
  missed_asked_at_ = asked_at_;
  if (++misses_ >= options.max_misses) rounds_to_skip_ = options.probe_rounds;
  const base::Nanos waited = now - asked_at_;
  latency_.Observe(waited);
  return waited;
}

}  // namespace specfabric::scheduler
