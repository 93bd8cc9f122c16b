#ifndef SPECFABRIC_APP_ROLES_H_
#define SPECFABRIC_APP_ROLES_H_

// The roles a process can have. Each runs until SIGTERM or SIGINT (generate: until it has answered)
// and returns OK after a clean end; the error of a start that failed is one line.

#include "absl/status/status.h"

namespace specfabric::app {

absl::Status RunGateway();
absl::Status RunTarget();
absl::Status RunDraft();
absl::Status RunUp();
absl::Status RunGenerate();

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_ROLES_H_
