#include "transport/blocked_queue_detector.h"

namespace specfabric::transport {

bool BlockedQueueDetector::Blocked(base::Nanos now, absl::FunctionRef<bool(PeerId)> is_opening) {
  while (!probation_.empty() && (!suspect_ || probation_.front().first <= now)) {
    const auto [until, peer] = probation_.front();
    probation_.pop_front();
    if (!suspect_ || !is_opening(peer)) continue;
    suspect_ = last_pong_ < until - kProbation;
    if (suspect_) return true;
  }
  return false;
}

base::Nanos BlockedQueueDetector::NextDeadline() const {
  return probation_.empty() ? base::kForever : probation_.front().first;
}

void BlockedQueueDetector::Reset() {
  suspect_ = false;
  probation_.clear();
}

}  // namespace specfabric::transport
