#include "gateway/target_pool.h"

#include <algorithm>
#include <tuple>

namespace specfabric::gateway {

using link::PeerId;

void TargetPool::Add(PeerId peer, const schemas::Hello& hello, base::Nanos now) {
  const bool stalled = stalled_.contains(hello.incarnation);
  targets_[peer] = Target{.hello = hello, .stalled = stalled, .heard = now};
}

void TargetPool::Remove(PeerId peer) { targets_.erase(peer); }

void TargetPool::Heard(PeerId peer, base::Nanos now) {
  const auto found = targets_.find(peer);
  if (found == targets_.end()) return;
  found->second.heard = now;
  found->second.stalled = false;
  stalled_.erase(found->second.hello.incarnation);
}

void TargetPool::AllHeard(base::Nanos now) {
  for (auto& [peer, target] : targets_) target.heard = now;
}

std::vector<PeerId> TargetPool::SilentSince(base::Nanos before) const {
  std::vector<PeerId> silent;
  for (const auto& [peer, target] : targets_) {
    if (target.outstanding > 0 && target.heard < before) silent.push_back(peer);
  }
  return silent;
}

void TargetPool::RemoveStalled(PeerId peer) {
  const auto found = targets_.find(peer);
  if (found == targets_.end()) return;
  stalled_.insert(found->second.hello.incarnation);
  targets_.erase(found);
}

void TargetPool::SetDraining(PeerId peer) {
  const auto found = targets_.find(peer);
  if (found != targets_.end()) found->second.draining = true;
}

std::optional<PeerId> TargetPool::Choose(uint64_t prefer, const std::set<PeerId>& except) const {
  std::optional<PeerId> best;
  std::tuple<bool, int, uint64_t> best_cost;
  for (const auto& [peer, target] : targets_) {
    if (target.draining || target.stalled || except.contains(peer)) continue;
    const bool differs = prefer != 0 && target.hello.numerics_fingerprint != prefer;
    const std::tuple cost(differs, target.outstanding, target.last_chosen);
    if (!best || cost < best_cost) {
      best = peer;
      best_cost = cost;
    }
  }
  return best;
}

void TargetPool::Assigned(PeerId peer, base::Nanos now) {
  const auto found = targets_.find(peer);
  if (found == targets_.end()) return;
  if (found->second.outstanding++ == 0) found->second.heard = now;
  found->second.last_chosen = ++choices_;
}

void TargetPool::Released(PeerId peer) {
  const auto found = targets_.find(peer);
  if (found != targets_.end()) --found->second.outstanding;
}

uint64_t TargetPool::Fingerprint(PeerId peer) const {
  const auto found = targets_.find(peer);
  return found == targets_.end() ? 0 : found->second.hello.numerics_fingerprint;
}

bool TargetPool::ChoosesVerification(PeerId peer, const schemas::Submit& submit) const {
  if (submit.verification || submit.sequence.sampling.greedy()) return false;
  const auto found = targets_.find(peer);
  return found != targets_.end() && found->second.hello.chooses_verification;
}

int TargetPool::Available() const {
  return static_cast<int>(std::count_if(targets_.begin(), targets_.end(), [](const auto& entry) {
    return !entry.second.draining && !entry.second.stalled;
  }));
}

int32_t TargetPool::Context() const {
  int32_t shortest = 0;
  for (const auto& [peer, target] : targets_) {
    const int32_t context = target.hello.context;
    if (context > 0 && (shortest == 0 || context < shortest)) shortest = context;
  }
  return shortest;
}

}  // namespace specfabric::gateway
