#ifndef SPECFABRIC_GATEWAY_TARGET_POOL_H_
#define SPECFABRIC_GATEWAY_TARGET_POOL_H_

// Which targets are there, and which of them gets the next sequence. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "link/link.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

class TargetPool {
 public:
  void Add(link::PeerId peer, const schemas::Hello& hello);
  void Remove(link::PeerId peer);
  void SetDraining(link::PeerId peer);  // finishes what it has, takes nothing new

  // The target with the fewest sequences of ours; among equals the one that was chosen longest ago.
  // Where one with the numerics `prefer` (0: no wish) is left, only such are considered, because
  // only they continue a text bit for bit. Nothing if all are draining or in `except`.
  std::optional<link::PeerId> Choose(uint64_t prefer, const std::set<link::PeerId>& except) const;

  void Assigned(link::PeerId peer);
  void Released(link::PeerId peer);  // ignored for a peer that is gone

  bool Has(link::PeerId peer) const { return targets_.contains(peer); }
  uint64_t Fingerprint(link::PeerId peer) const;  // of its numerics; 0 if unknown
  int Available() const;                          // that take new work
  // The shortest context of those connected; 0 with none.
  int32_t Context() const;

 private:
  struct Target {
    schemas::Hello hello;
    bool draining = false;
    int outstanding = 0;
    uint64_t last_chosen = 0;
  };
  std::map<link::PeerId, Target> targets_;
  uint64_t choices_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TARGET_POOL_H_
