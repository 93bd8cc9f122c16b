#include "scheduler/policy/draft_wait.h"

#include <algorithm>
#include <utility>

namespace specfabric::scheduler {
namespace {

constexpr int32_t kMostDoublings = 5;
constexpr base::Nanos kAnswered = -1;  // or it did not ask

}  // namespace

bool DraftWait::StartRound(const DraftOrder& order, base::Nanos now) {
  ++round_;
  asked_ <<= 1;
  state_ = State::kIdle;
  waited_ = 0;
  base::Nanos& unanswered = unanswered_[round_ % unanswered_.size()];
  unanswered = kAnswered;
  if (!order.ask) return false;
  if (rounds_to_skip_ > 0) {
    --rounds_to_skip_;
    return false;
  }
  state_ = State::kWaiting;
  asked_ |= 1;
  order_ = order;
  asked_at_ = unanswered = now;
  deadline_ = now + order.reply_timeout;
  return true;
}

base::Nanos DraftWait::OnReply(base::Nanos now) {
  state_ = State::kSettled;
  misses_ = 0;
  unanswered_[round_ % unanswered_.size()] = kAnswered;
  return waited_ = now - asked_at_;
}

void DraftWait::OnUnavailable() {
  state_ = State::kSettled;
  unanswered_[round_ % unanswered_.size()] = kAnswered;
}

base::Nanos DraftWait::OnSkipped(base::Nanos now) {
  state_ = State::kSettled;
  return waited_ = now - asked_at_;
}

std::optional<base::Nanos> DraftWait::OnStaleReply(uint32_t round, base::Nanos now) {
  // Without this the reply time of drafts that no step waits for would never be learned.
  if (round > round_ || round_ - round >= unanswered_.size()) return std::nullopt;
  const base::Nanos asked = std::exchange(unanswered_[round % unanswered_.size()], kAnswered);
  if (asked == kAnswered) return std::nullopt;
  return now - asked;
}

base::Nanos DraftWait::OnMiss(base::Nanos now, const MissLimits& limits) {
  state_ = State::kSettled;
  if (++misses_ >= limits.max_misses) {
    rounds_to_skip_ = limits.probe_rounds << std::min(misses_ - limits.max_misses, kMostDoublings);
  }
  return waited_ = now - asked_at_;
}

}  // namespace specfabric::scheduler
