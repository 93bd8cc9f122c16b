#ifndef SPECFABRIC_LINK_NAME_WATCH_H_
#define SPECFABRIC_LINK_NAME_WATCH_H_

// Looks names up periodically and reports their addresses.
//
// A lookup blocks as long as the system's resolver does, so the watch has a thread of its own for
// it, one name after the other; the destructor does not wait for it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace specfabric::link {

// The numeric addresses, with the port, of "host:port". NotFound: it has none now; any other error:
// the resolver did not answer.
using Lookup = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& name)>;

class NameWatch {
 public:
  // Called after every lookup with an answer, on the watch's thread, and never after the
  // destructor. Must not destroy the watch. A name without addresses is an answer too, an empty
  // list. Without an answer (the resolver is down) it is not called, and the last answer stays
  // valid.
  using OnRecords =
      std::function<void(const std::string& name, const std::vector<std::string>& addresses)>;

  // `lookup` may be called until it returns even after the destructor: it owns what it uses.
  NameWatch(std::vector<std::string> names, base::Nanos interval, Lookup lookup,
            OnRecords on_records);
  NameWatch(const NameWatch&) = delete;
  NameWatch& operator=(const NameWatch&) = delete;
  // Do not hold a mutex that on_records locks.
  ~NameWatch();

  uint64_t failures() const;  // lookups without an address, since start

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_NAME_WATCH_H_
