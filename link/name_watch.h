#ifndef SPECFABRIC_LINK_NAME_WATCH_H_
#define SPECFABRIC_LINK_NAME_WATCH_H_

// Looks names up again and again, and tells what they stand for.
//
// Looking up blocks for as long as the system's resolver cares to, so a thread of its own does it,
// one name after the other; whoever destroys the watch does not wait for it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace specfabric::link {

// The numeric addresses, with the port, of "host:port". NotFound: it has none now; any other error:
// nobody could say.
using Lookup = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& name)>;

class NameWatch {
 public:
  // After every look-up that had an answer, on the watch's thread, and never after the destructor.
  // Must not destroy the watch. That a name has no address is an answer too: an empty list. Where
  // there is none (the resolver is down), what was known stays.
  using OnRecords =
      std::function<void(const std::string& name, const std::vector<std::string>& addresses)>;

  // `lookup` may be called until it returns even after the destructor: it owns what it uses.
  NameWatch(std::vector<std::string> names, base::Nanos interval, Lookup lookup,
            OnRecords on_records);
  NameWatch(const NameWatch&) = delete;
  NameWatch& operator=(const NameWatch&) = delete;
  // Not while holding what on_records takes.
  ~NameWatch();

  uint64_t failures() const;  // look-ups without an address, since start

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_NAME_WATCH_H_
