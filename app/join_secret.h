#ifndef SPECFABRIC_APP_JOIN_SECRET_H_
#define SPECFABRIC_APP_JOIN_SECRET_H_

// The secret that peers of one cluster prove to each other: where it comes from. It goes by file or
// pipe only, never by command line or environment, which other users and crash reports may see.

#include <string>

#include "absl/status/statusor.h"

namespace specfabric::app {

// The content of --join_secret_file, or nothing without that flag. The file is read once, because
// it may be a pipe. InvalidArgument: as ReadJoinSecret.
absl::StatusOr<std::string> JoinSecret();

// The same, or a random one: for roles that start all their peers themselves.
absl::StatusOr<std::string> JoinSecretOrRandom();

// The file's bytes without the line ends they may end with. InvalidArgument: it cannot be read, or
// holds fewer than 16 bytes or more than 4096.
absl::StatusOr<std::string> ReadJoinSecret(const std::string& path);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_JOIN_SECRET_H_
