#ifndef SPECFABRIC_GATEWAY_TARGET_POOL_H_
#define SPECFABRIC_GATEWAY_TARGET_POOL_H_

// The connected targets, and the choice of one for each sequence. Pure.

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
  // A message of its engine has arrived, so it is not stalled.
  void Heard(link::PeerId peer, base::Nanos now);
  // This process itself had stopped, and has messages of all of them to read: none is stalled.
  void AllHeard(base::Nanos now);
  // Targets with work of ours whose engines have sent nothing since `before`.
  std::vector<link::PeerId> SilentSince(base::Nanos before) const;
  // Removes it. If it connects again, it gets no work before its engine has sent a message: the
  // thread that accepts connections is not the one that hangs.
  void RemoveStalled(link::PeerId peer);
  void SetDraining(link::PeerId peer);  // it finishes its sequences and gets no new ones

  // The target with the fewest sequences of ours; of several the one that was chosen longest ago.
  // If there is one with the numerics `prefer` (0: no preference), only those are considered,
  // because only they continue a text bit for bit. Nothing if all are draining, stalled or in
  // `except`.
  std::optional<link::PeerId> Choose(uint64_t prefer, const std::set<link::PeerId>& except) const;

  void Assigned(link::PeerId peer, base::Nanos now);
  void Released(link::PeerId peer);  // ignored for a peer that is gone

  bool Has(link::PeerId peer) const { return targets_.contains(peer); }
  uint64_t Fingerprint(link::PeerId peer) const;  // of its numerics; 0 if unknown
  // Whether it chooses the verification method of this request.
  bool ChoosesVerification(link::PeerId peer, const schemas::Submit& submit) const;
  int Available() const;  // number of targets that take new work
  // The shortest context of the connected targets; 0 without any.
  int32_t Context() const;

 private:
  struct Target {
    schemas::Hello hello;
    bool draining = false;
    bool stalled = false;
    int outstanding = 0;
    base::Nanos heard = 0;  // last message, or assignment of work while it had none
    uint64_t last_chosen = 0;
  };
  std::map<link::PeerId, Target> targets_;
  std::set<uint64_t> stalled_;  // incarnations
  uint64_t choices_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TARGET_POOL_H_
