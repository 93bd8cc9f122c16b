#include "app/process.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "app/flags.h"
#include "base/exit_code.h"
#include "nlohmann/json.hpp"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace specfabric::app {

namespace {

sigset_t EndSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

const char* NameOf(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace

void BlockSignals() {
  const sigset_t set = EndSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void EndWithParent() { prctl(PR_SET_PDEATHSIG, SIGTERM); }

std::string WaitForSignal() {
  const sigset_t set = EndSignals();
  int caught = 0;
  sigwait(&set, &caught);
  return NameOf(caught);
}

std::optional<std::string> WaitForSignal(base::Nanos timeout) {
  const sigset_t set = EndSignals();
  const timespec bound = {static_cast<time_t>(timeout / base::kSecond),
                          static_cast<long>(timeout % base::kSecond)};
  const int caught = sigtimedwait(&set, nullptr, &bound);
  if (caught < 0) return std::nullopt;
  return NameOf(caught);
}

absl::Status StartLogging(const std::string& role, const std::string& level) {
  if (level != "debug" && level != "info" && level != "warning" && level != "error") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_level=", level, ": allowed are debug, info, warning, error"));
  }
  auto logger = spdlog::stderr_color_mt(role);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %n[%P] %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(logger);
  return absl::OkStatus();
}

void ReportReady(const std::string& role, const std::string& listen, const std::string& admin) {
  spdlog::info("ready listen={} admin={}", listen, admin.empty() ? "none" : admin);
  if (FLAGS_ready_fd < 0) return;
  const nlohmann::json line = {
      {"role", role}, {"pid", getpid()}, {"listen", listen}, {"admin", admin}};
  const std::string text = line.dump() + "\n";
  // Fails if the parent has ended, which closes the pipe.
  if (write(FLAGS_ready_fd, text.data(), text.size()) < 0) {
    spdlog::warn("--ready_fd={}: {}", FLAGS_ready_fd, strerror(errno));
  }
  close(FLAGS_ready_fd);
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return base::kExitOk;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return base::kExitUsage;
    default:
      return base::kExitSurroundings;
  }
}

}  // namespace specfabric::app
