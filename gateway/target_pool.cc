#include "gateway/target_pool.h"

#include <algorithm>
#include <tuple>

namespace specfabric::gateway {

using link::PeerId;

void TargetPool::Add(PeerId peer, const schemas::Hello& hello) {
  targets_[peer] = Target{.hello = hello};
}

void TargetPool::Remove(PeerId peer) { targets_.erase(peer); }

void TargetPool::SetDraining(PeerId peer) {
  const auto found = targets_.find(peer);
  if (found != targets_.end()) found->second.draining = true;
}

std::optional<PeerId> TargetPool::Choose(uint64_t prefer, const std::set<PeerId>& except) const {
  std::optional<PeerId> best;
  std::tuple<bool, int, uint64_t> best_cost;
  for (const auto& [peer, target] : targets_) {
    if (target.draining || except.contains(peer)) continue;
    const bool differs = prefer != 0 && target.hello.numerics_fingerprint != prefer;
    const std::tuple cost(differs, target.outstanding, target.last_chosen);
    if (!best || cost < best_cost) {
      best = peer;
      best_cost = cost;
    }
  }
  return best;
}

void TargetPool::Assigned(PeerId peer) {
  const auto found = targets_.find(peer);
  if (found == targets_.end()) return;
  ++found->second.outstanding;
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

int TargetPool::Available() const {
  return static_cast<int>(std::count_if(targets_.begin(), targets_.end(),
                                        [](const auto& entry) { return !entry.second.draining; }));
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
