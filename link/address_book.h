#ifndef SPECFABRIC_LINK_ADDRESS_BOOK_H_
#define SPECFABRIC_LINK_ADDRESS_BOOK_H_

// The addresses that a link keeps connected, and when to try each next. Some are configured; others
// are the present DNS records of a name. An address whose record is gone is not tried again, but an
// existing connection to it is kept.
//
// A process is one peer, even if several addresses lead to it (a name with an IPv4 and an IPv6
// record for each machine): the second connection to an incarnation that is up is a duplicate, to
// be closed, and its address is not retried while the first one lasts. Pure; the owner serialises
// calls.

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
  // After so long a duplicate's address is tried anyway: another process may have taken it.
  static constexpr base::Nanos kDuplicateWait = 60 * base::kSecond;

  AddressBook(base::Nanos min_backoff, base::Nanos max_backoff, uint64_t seed);

  // Keeps `address` connected from now on.
  void Add(const std::string& address, base::Nanos now);
  // Replaces the records of `name`. True if they have changed.
  bool SetRecords(const std::string& name, const std::vector<std::string>& addresses,
                  base::Nanos now);

  // Addresses to connect to at `now`, and when the next one will be due (`latest` if none before).
  std::vector<std::string> Due(base::Nanos now) const;
  base::Nanos NextDue(base::Nanos latest) const;

  // A connection attempt, `peer`, was made to `address`; false: the address is no longer kept.
  bool Begin(const std::string& address, transport::PeerId peer);
  // No attempt could be made. True where it should be logged: the last failure had another reason.
  bool Failed(const std::string& address, absl::StatusCode why, base::Nanos now);

  enum class Arrival { kFirst, kAgain, kDuplicate };  // kAgain: the address was up before
  // The peer's Hello has come. Peers that connected to us are not in the book: kFirst.
  Arrival Up(transport::PeerId peer, uint64_t incarnation);

  // The end of a connection, or of an attempt, to an address in the book.
  struct Loss {
    std::string address;
    bool news = false;  // as Failed returns, for attempts; false for connections
  };
  // opened: it was a connection, not only an attempt; stable: one that lasted, so that the back-off
  // is reset.
  std::optional<Loss> Down(transport::PeerId peer, absl::StatusCode why, bool opened, bool stable,
                           base::Nanos now);

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Backoff backoff;
    std::set<std::string> sources;  // names it is a record of; "" if it is configured
    transport::PeerId peer = 0;     // 0: neither connected nor connecting
    base::Nanos next_attempt = 0;   // while peer == 0
    uint64_t incarnation = 0;       // of the peer that is up; 0: none
    uint64_t duplicate_of = 0;      // the incarnation that its last connection duplicated; 0: none
    bool was_up = false;
    absl::StatusCode failing = absl::StatusCode::kOk;  // the last attempt's failure
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
