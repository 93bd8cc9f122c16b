#ifndef SPECFABRIC_APP_SECRET_FILE_H_
#define SPECFABRIC_APP_SECRET_FILE_H_

// The join secret goes by file or pipe only, never by command line or environment, which other
// users and crash reports may see.

#include <string>

#include "absl/status/statusor.h"

namespace specfabric::app {

// The bytes of the file that --join_secret_file names, without the line ends they may end with.
// InvalidArgument: it cannot be read, or holds fewer than 16 bytes or more than 4096.
absl::StatusOr<std::string> ReadJoinSecret(const std::string& path);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_SECRET_FILE_H_
