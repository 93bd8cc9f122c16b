#ifndef SPECFABRIC_TRANSPORT_PEER_TABLE_H_
#define SPECFABRIC_TRANSPORT_PEER_TABLE_H_

// What callers of Fabric::Send may know of a peer without asking the progress thread: that it
// lives, and how many of its sends are outstanding. Any thread.

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/fabric.h"

namespace specfabric::transport {

class PeerTable {
 public:
  explicit PeerTable(int32_t max_outstanding) : max_outstanding_(max_outstanding) {}

  void Add(PeerId peer) {
    std::lock_guard lock(mutex_);
    outstanding_.try_emplace(peer, 0);
  }
  void Remove(PeerId peer) {
    std::lock_guard lock(mutex_);
    outstanding_.erase(peer);
  }
  // Takes one of the peer's send places; Release gives it back.
  absl::Status Reserve(PeerId peer) {
    std::lock_guard lock(mutex_);
    const auto entry = outstanding_.find(peer);
    if (entry == outstanding_.end()) {
      return absl::NotFoundError(absl::StrCat("peer ", peer, " is closed"));
    }
    if (entry->second >= max_outstanding_) {
      return absl::ResourceExhaustedError(absl::StrCat("peer ", peer, " has ", entry->second,
                                                       " sends outstanding, at most ",
                                                       max_outstanding_, " are allowed"));
    }
    ++entry->second;
    return absl::OkStatus();
  }
  void Release(PeerId peer) {
    std::lock_guard lock(mutex_);
    const auto entry = outstanding_.find(peer);
    if (entry != outstanding_.end()) --entry->second;
  }

 private:
  const int32_t max_outstanding_;
  std::mutex mutex_;
  absl::flat_hash_map<PeerId, int32_t> outstanding_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_PEER_TABLE_H_
