#ifndef SPECFABRIC_APP_JOIN_SECRET_H_
#define SPECFABRIC_APP_JOIN_SECRET_H_

// The secret that peers of one cluster prove to each other: where a role has it from.

#include <string>

#include "absl/status/statusor.h"

namespace specfabric::app {

// The content of --join_secret_file, or nothing without that flag. The file is read once, because
// it may be a pipe. InvalidArgument: as ReadJoinSecret (secret_file.h).
absl::StatusOr<std::string> JoinSecret();

// The same, or a random one: for roles that start all their peers themselves.
absl::StatusOr<std::string> JoinSecretOrRandom();

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_JOIN_SECRET_H_
