#ifndef SPECFABRIC_APP_PROCESS_H_
#define SPECFABRIC_APP_PROCESS_H_

// What the processes of all roles share: signals, logs, the ready line.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"

namespace specfabric::app {

// SIGTERM and SIGINT are blocked in this thread and in all that it starts, so that only
// WaitForSignal sees them. Call before any thread exists. SIGPIPE is ignored.
void BlockSignals();
// A supervised process gets SIGTERM when its supervisor is gone, however that ended.
void EndWithParent();
// Waits for SIGTERM or SIGINT and returns its name.
std::string WaitForSignal();
// The same for at most `timeout`; nullopt after it.
std::optional<std::string> WaitForSignal(base::Nanos timeout);

// Logs to standard error. `level` is checked: InvalidArgument names the allowed ones.
absl::Status StartLogging(const std::string& role, const std::string& level);

// Writes {"role":..,"pid":..,"listen":..,"admin":..} and a newline to --ready_fd, if given.
void ReportReady(const std::string& role, const std::string& listen, const std::string& admin);

// base::kExitOk; kExitUsage for errors in flags or files; else kExitSurroundings.
int ExitCode(const absl::Status& status);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_PROCESS_H_
