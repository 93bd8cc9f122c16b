#ifndef SPECFABRIC_APP_CHILD_H_
#define SPECFABRIC_APP_CHILD_H_

// A role in a process of its own, started by `up`.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace specfabric::app {

struct Child {
  std::string role;
  pid_t pid = 0;
  std::string listen;  // as bound
  std::string admin;
};

// Starts this same program as `role` with `args` and waits for its ready line. `secret` is handed
// over as --join_secret_file by a pipe that is empty once read: it is in no file, argument or
// variable. A child that ends before it is ready gives its exit status as the error, and has
// printed why; one that takes longer than `timeout` is killed. Uses posix_spawn, never fork.
absl::StatusOr<Child> StartChild(const std::string& role, const std::vector<std::string>& args,
                                 const std::string& secret, base::Nanos timeout);

// The exit status of a child that ended before it was ready (and said why), if `status` is the
// error of StartChild about one.
std::optional<int> ChildExitCode(const absl::Status& status);

// SIGTERM, then up to `timeout`, then SIGKILL; reaps it. True if it ended by itself with status 0.
bool EndChild(const Child& child, base::Nanos timeout);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_CHILD_H_
