#ifndef SPECFABRIC_LINK_ADDRESS_BOOK_H_
#define SPECFABRIC_LINK_ADDRESS_BOOK_H_

// The addresses that a link keeps connected, and when each is to be tried next. Some are given once
// and for all; others are what a name stands for at present, and leave with their record: an
// address without one is not tried again, but the connection that it has is not cut.
//
// A process is one peer, however many addresses lead to it (a name with an IPv4 and an IPv6 record
// for each machine): the second connection to a living incarnation is a duplicate, to be closed,
// and its address is left alone while the first one lasts. Pure; calls are serialised by the owner.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "link/backoff.h"
#include "transport/fabric.h"

namespace specfabric::link {

class AddressBook {
 public:
  // How soon a duplicate's address is tried again all the same: another process may have taken it.
  static constexpr base::Nanos kDuplicateWait = 60 * base::kSecond;

  AddressBook(base::Nanos min_backoff, base::Nanos max_backoff, uint64_t seed);

  // `address` from now on, for good.
  void Add(const std::string& address, base::Nanos now);
  // What `name` stands for now, instead of what it did. True if that is something else.
  bool SetRecords(const std::string& name, const std::vector<std::string>& addresses,
                  base::Nanos now);

  // Addresses to connect to at `now`, and when the next one will be due (`latest` if none before).
  std::vector<std::string> Due(base::Nanos now) const;
  base::Nanos NextDue(base::Nanos latest) const;

  // `peer` is being connected to `address`; false: nobody wants it any more.
  bool Begin(const std::string& address, transport::PeerId peer);
  // No attempt could be made. True if that is news: the last failure had another reason.
  bool Failed(const std::string& address, absl::StatusCode why, base::Nanos now);

  enum class Arrival { kFirst, kAgain, kDuplicate };  // kAgain: the address was up before
  // The peer has said who it is. Peers that connected to us are not in the book: kFirst.
  Arrival Up(transport::PeerId peer, uint64_t incarnation);

  // Of an address in the book whose connection, or attempt at one, has ended.
  struct Loss {
    std::string address;
    bool news = false;  // as Failed's; only attempts have any
  };
  // `opened`: it was a connection; `stable`: one that lasted, so that the back-off starts afresh.
  std::optional<Loss> Down(transport::PeerId peer, absl::StatusCode why, bool opened, bool stable,
                           base::Nanos now);

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Backoff backoff;
    std::set<std::string> sources;  // names it is a record of; "" if it was given itself
    transport::PeerId peer = 0;     // 0: not connected nor trying
    base::Nanos next_attempt = 0;   // while peer == 0
    uint64_t incarnation = 0;       // of the peer that is up; 0: none
    uint64_t duplicate_of = 0;      // the incarnation it was a duplicate of
    bool was_up = false;
    absl::StatusCode failing = absl::StatusCode::kOk;  // of the last attempt
  };
  using Entries = std::map<std::string, Entry>;  // by address

  void AddFrom(const std::string& source, const std::string& address, base::Nanos now);
  Entries::iterator Find(transport::PeerId peer);
  void ForgetUnlessWanted(Entries::iterator entry);

  const base::Nanos min_backoff_, max_backoff_;
  uint64_t seed_;
  Entries entries_;
};

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_ADDRESS_BOOK_H_
