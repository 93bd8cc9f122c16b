#ifndef SPECFABRIC_TRANSPORT_PEER_TABLE_H_
#define SPECFABRIC_TRANSPORT_PEER_TABLE_H_

// The names of peers, and what any thread may read of a peer without asking the progress thread:
// whether it is open, and how many sends, of how many bytes, are outstanding to it.
//
// A PeerId is a serial number over a 16-bit index; an index is used again only after all others
// have been. Reserve and Release are lock-free: one word an index holds, from the top, the serial's
// low 28 bits, the outstanding bytes in units of 4 KiB (20 bits) and the outstanding sends (16).
// Serial 0: no peer.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/fabric.h"

namespace specfabric::transport {

class PeerTable {
 public:
  static constexpr uint32_t kIndexes = 1 << 16;
  static constexpr uint32_t IndexOf(PeerId peer) { return peer & (kIndexes - 1); }

  PeerTable(int32_t max_sends, uint64_t max_bytes)
      : max_sends_(std::clamp(max_sends, 0, 0xffff)),
        max_units_(Units(max_bytes)),
        words_(new std::atomic<uint64_t>[kIndexes]()) {}

  // A name for a new peer, which Add makes known; 0: all indexes are taken.
  PeerId Name() {
    std::lock_guard lock(mutex_);
    uint32_t index;
    if (next_index_ < kIndexes) {
      index = next_index_++;
    } else if (!free_.empty()) {
      index = free_.front();
      free_.pop_front();
    } else {
      return 0;
    }
    ++serial_;
    if ((serial_ & kSerialMask) == 0) ++serial_;
    return serial_ << 16 | index;
  }
  // Frees the name's index. Nothing may be outstanding to the peer any more.
  void Forget(PeerId peer) {
    Remove(peer);
    std::lock_guard lock(mutex_);
    free_.push_back(IndexOf(peer));
  }

  void Add(PeerId peer) { Word(peer).store(Key(peer) << 36); }
  void Remove(PeerId peer) {
    uint64_t word = Word(peer).load();
    while (Is(peer, word) && !Word(peer).compare_exchange_weak(word, 0)) {
    }
  }

  // Reserves one send of so many bytes, until Release.
  absl::Status Reserve(PeerId peer, uint64_t bytes) {
    const uint64_t units = Units(bytes);
    uint64_t word = Word(peer).load(std::memory_order_relaxed);
    while (true) {
      if (!Is(peer, word)) {
        return absl::NotFoundError(absl::StrCat("peer ", peer, " is closed"));
      }
      const uint64_t sends = word & 0xffff;
      const uint64_t outstanding = word >> 16 & kMaxUnits;
      if (sends >= max_sends_ || (sends > 0 && outstanding + units > max_units_)) {
        return absl::ResourceExhaustedError(
            absl::StrCat("peer ", peer, " has ", sends, " sends of ", outstanding * kUnit / 1024,
                         " KiB outstanding, at most ", max_sends_, " of ",
                         max_units_ * kUnit / 1024, " KiB are allowed"));
      }
      if (Word(peer).compare_exchange_weak(word, word + (units << 16) + 1)) {
        return absl::OkStatus();
      }
    }
  }
  // Whether any peer has sends outstanding.
  bool AnyOutstanding() {
    std::lock_guard lock(mutex_);
    return std::any_of(words_.get(), words_.get() + next_index_,
                       [](const auto& word) { return (word.load() & 0xffff) != 0; });
  }
  void Release(PeerId peer, uint64_t bytes) {
    uint64_t word = Word(peer).load(std::memory_order_relaxed);
    while (Is(peer, word) &&
           !Word(peer).compare_exchange_weak(word, word - (Units(bytes) << 16) - 1)) {
    }
  }

 private:
  static constexpr uint64_t kUnit = 4096;
  static constexpr uint64_t kMaxUnits = (1 << 20) - 1;
  static constexpr uint64_t kSerialMask = (1 << 28) - 1;
  // Clamped, so that the largest frame there is does not spill into the serial.
  static constexpr uint64_t Units(uint64_t bytes) {
    return std::min((bytes + kUnit - 1) / kUnit, kMaxUnits);
  }
  static constexpr uint64_t Key(PeerId peer) { return peer >> 16 & kSerialMask; }
  static constexpr bool Is(PeerId peer, uint64_t word) {
    return Key(peer) != 0 && word >> 36 == Key(peer);
  }
  std::atomic<uint64_t>& Word(PeerId peer) const { return words_[IndexOf(peer)]; }

  const uint64_t max_sends_;
  const uint64_t max_units_;
  const std::unique_ptr<std::atomic<uint64_t>[]> words_;
  std::mutex mutex_;  // all below
  uint64_t serial_ = 0;
  uint32_t next_index_ = 0;
  std::deque<uint32_t> free_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_PEER_TABLE_H_
