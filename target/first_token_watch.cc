#include "target/first_token_watch.h"

#include <algorithm>
#include <utility>

namespace specfabric::target {

bool FirstTokenWatch::Observe(bool first_accepted) {
  rounds_ = std::min(rounds_ + 1, kRounds);
  acceptance_ += ((first_accepted ? 1.0 : 0.0) - acceptance_) / rounds_;
  if (rounds_ < kRounds) return false;
  const bool suspect = acceptance_ < kSuspect;
  if (acceptance_ > 1.1 * kSuspect) told_ = false;
  return suspect && !std::exchange(told_, true);
}

std::optional<double> FirstTokenWatch::acceptance() const {
  if (rounds_ < kRounds) return std::nullopt;
  return acceptance_;
}

}  // namespace specfabric::target
