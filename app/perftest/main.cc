// specfabric-perftest: the transport's latency and bandwidth between two processes.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "app/perftest/inline_port.h"
#include "app/perftest/measure.h"
#include "app/perftest/options.h"
#include "app/perftest/report.h"
#include "app/perftest/threaded_port.h"
#include "base/exit_code.h"
#include "base/status.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace specfabric::perftest {
namespace {

template <typename Port>
absl::Status RunAsServer(Port& port, const Options& options) {
  const auto address = port.Listen(options.address);
  if (!address.ok()) return address.status();
  std::fprintf(stderr, "specfabric-perftest: listening on %s\n", address->c_str());
  const absl::Status accepted = port.Accept();
  if (!accepted.ok()) return accepted;
  std::fprintf(stderr, "specfabric-perftest: a client has connected over %s\n",
               port.Wire().c_str());
  return RunServer(port);
}

template <typename Port>
absl::Status RunAsClient(Port& port, const Options& options) {
  // Before anybody is bothered.
  const absl::Status prepared = Prepare(port, options.plan);
  if (!prepared.ok()) return prepared;
  const absl::Status connected = port.Connect(options.address);
  if (!connected.ok()) return connected;
  const auto samples = RunClient(port, options.plan);
  if (!samples.ok()) return samples.status();
  std::fputs(Report(options.plan, *samples, options.format).c_str(), stdout);
  return absl::OkStatus();
}

template <typename Port>
absl::Status Run(const Options& options) {
  Port port(options.fabric);
  const absl::Status started = port.Start();
  if (!started.ok()) return started;
  return options.server ? RunAsServer(port, options) : RunAsClient(port, options);
}

int Fail(const absl::Status& status, base::ExitCode code) {
  std::fprintf(stderr, "specfabric-perftest: %s\n", base::Message(status).c_str());
  return code;
}

int Main(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "--help=all" || arg == "-help" || arg == "-h") {
      std::fputs(Help().c_str(), stdout);
      return base::kExitOk;
    }
  }
  const auto options = ReadOptions(args);
  if (!options.ok()) return Fail(options.status(), base::kExitUsage);
  spdlog::set_default_logger(spdlog::stderr_color_mt("perftest"));
  spdlog::set_level(spdlog::level::warn);
  const absl::Status status =
      options->threaded ? Run<ThreadedPort>(*options) : Run<InlinePort>(*options);
  return status.ok() ? base::kExitOk : Fail(status, base::kExitSurroundings);
}

}  // namespace
}  // namespace specfabric::perftest

int main(int argc, char** argv) { return specfabric::perftest::Main({argv + 1, argv + argc}); }
