#include "link/address_book.h"

#include <algorithm>
#include <utility>

namespace specfabric::link {

using transport::PeerId;

AddressBook::AddressBook(base::Nanos min_backoff, base::Nanos max_backoff, uint64_t seed)
    : min_backoff_(min_backoff), max_backoff_(max_backoff), seed_(seed) {}

void AddressBook::AddFrom(const std::string& source, const std::string& address, base::Nanos now) {
  auto entry = entries_.find(address);
  if (entry == entries_.end()) {
    Entry fresh = {.backoff = Backoff(min_backoff_, max_backoff_, seed_++), .sources = {}};
    fresh.next_attempt = now;
    entry = entries_.emplace(address, std::move(fresh)).first;
  }
  entry->second.sources.insert(source);
}

void AddressBook::Add(const std::string& address, base::Nanos now) { AddFrom("", address, now); }

bool AddressBook::SetRecords(const std::string& name, const std::vector<std::string>& addresses,
                             base::Nanos now) {
  const std::set<std::string> wanted(addresses.begin(), addresses.end());
  bool changed = false;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto entry = next++;
    if (wanted.contains(entry->first) || entry->second.sources.erase(name) == 0) continue;
    changed = true;
    ForgetUnlessWanted(entry);
  }
  for (const std::string& address : wanted) {
    const auto entry = entries_.find(address);
    if (entry != entries_.end() && entry->second.sources.contains(name)) continue;
    changed = true;
    AddFrom(name, address, now);
  }
  return changed;
}

std::vector<std::string> AddressBook::Due(base::Nanos now) const {
  std::vector<std::string> due;
  for (const auto& [address, entry] : entries_) {
    if (entry.peer == 0 && entry.next_attempt <= now) due.push_back(address);
  }
  return due;
}

base::Nanos AddressBook::NextDue(base::Nanos latest) const {
  for (const auto& [address, entry] : entries_) {
    if (entry.peer == 0) latest = std::min(latest, entry.next_attempt);
  }
  return latest;
}

bool AddressBook::Begin(const std::string& address, PeerId peer) {
  const auto entry = entries_.find(address);
  if (entry == entries_.end()) return false;
  entry->second.peer = peer;
  entry->second.duplicate_of = 0;
  return true;
}

bool AddressBook::Failed(const std::string& address, absl::StatusCode why, base::Nanos now) {
  const auto entry = entries_.find(address);
  if (entry == entries_.end()) return false;
  entry->second.next_attempt = now + entry->second.backoff.Next();
  return std::exchange(entry->second.failing, why) != why;
}

AddressBook::Arrival AddressBook::Up(PeerId peer, uint64_t incarnation) {
  const auto entry = Find(peer);
  if (entry == entries_.end()) return Arrival::kFirst;
  for (const auto& [address, other] : entries_) {
    if (other.peer != peer && other.incarnation == incarnation) {
      entry->second.duplicate_of = incarnation;
      return Arrival::kDuplicate;
    }
  }
  entry->second.incarnation = incarnation;
  entry->second.failing = absl::StatusCode::kOk;
  return std::exchange(entry->second.was_up, true) ? Arrival::kAgain : Arrival::kFirst;
}

std::optional<AddressBook::Loss> AddressBook::Down(PeerId peer, absl::StatusCode why, bool opened,
                                                   bool stable, base::Nanos now) {
  const auto found = Find(peer);
  if (found == entries_.end()) return std::nullopt;
  Entry& entry = found->second;
  Loss loss = {found->first};
  if (stable) entry.backoff.Reset();
  entry.peer = 0;
  entry.next_attempt = now + (entry.duplicate_of != 0 ? kDuplicateWait : entry.backoff.Next());
  if (!opened) loss.news = std::exchange(entry.failing, why) != why;
  if (const uint64_t ended = std::exchange(entry.incarnation, 0); ended != 0) {
    for (auto& [address, other] : entries_) {
      if (other.duplicate_of != ended) continue;
      other.duplicate_of = 0;
      other.next_attempt = now;
    }
  }
  ForgetUnlessWanted(found);
  return loss;
}

AddressBook::Entries::iterator AddressBook::Find(PeerId peer) {
  if (peer == 0) return entries_.end();
  return std::find_if(entries_.begin(), entries_.end(),
                      [peer](const auto& entry) { return entry.second.peer == peer; });
}

void AddressBook::ForgetUnlessWanted(Entries::iterator entry) {
  if (entry->second.sources.empty() && entry->second.peer == 0) entries_.erase(entry);
}

}  // namespace specfabric::link
