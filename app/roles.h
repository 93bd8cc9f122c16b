#ifndef SPECFABRIC_APP_ROLES_H_
#define SPECFABRIC_APP_ROLES_H_

// The roles a process can have. Each runs until SIGTERM or SIGINT (generate: until it has answered)
// and returns OK after a clean end; the error of a start that failed is one line.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace specfabric::app {

absl::Status RunGateway();
absl::Status RunTarget();
absl::Status RunRank();  // also ends by itself, with its leader
absl::Status RunDraft();
absl::Status RunUp();
absl::Status RunGenerate();
absl::Status RunSimulate();
absl::Status RunStatus();  // once, unless standard output is a terminal

// Becomes the program specfabric-perftest in the folder of this one, with its own flags. Returns
// only if it cannot. Before any thread exists.
absl::Status RunPerftest(const std::vector<std::string>& args);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_ROLES_H_
