#ifndef SPECFABRIC_GATEWAY_TARGET_POOL_H_
#define SPECFABRIC_GATEWAY_TARGET_POOL_H_

// Which targets are there, and which of them gets the next sequence. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "link/link.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

class TargetPool {
 public:
  void Add(link::PeerId peer, const schemas::Hello& hello, base::Nanos now);
  void Remove(link::PeerId peer);
  // Its engine has said something, so it is not stalled.
  void Heard(link::PeerId peer, base::Nanos now);
  void AllHeard(base::Nanos now);
  // Targets with work of ours of whose engines nothing was heard since `before`.
  std::vector<link::PeerId> SilentSince(base::Nanos before) const;
  // Takes it out: connected again it gets nothing before it is heard. (A link is answered by
  // another thread than the one that hangs.)
  void RemoveStalled(link::PeerId peer);
  void SetDraining(link::PeerId peer);  // finishes what it has, takes nothing new

  // The target with the fewest sequences of ours; among equals the one that was chosen longest ago.
  // Where one with the numerics `prefer` (0: no wish) is left, only such are considered, because
  // only they continue a text bit for bit. Nothing if all are draining, stalled or in `except`.
  std::optional<link::PeerId> Choose(uint64_t prefer, const std::set<link::PeerId>& except) const;

  void Assigned(link::PeerId peer, base::Nanos now);
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
    bool stalled = false;
    int outstanding = 0;
    base::Nanos heard = 0;  // or was given work while it had none
    uint64_t last_chosen = 0;
  };
  std::map<link::PeerId, Target> targets_;
  std::set<uint64_t> stalled_;  // incarnations
  uint64_t choices_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TARGET_POOL_H_
