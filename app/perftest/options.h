#ifndef SPECFABRIC_APP_PERFTEST_OPTIONS_H_
#define SPECFABRIC_APP_PERFTEST_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "app/perftest/plan.h"
#include "app/perftest/report.h"
#include "transport/fabric.h"

namespace specfabric::perftest {

struct Options {
  bool server = false;
  std::string address;  // host:port to listen on or to connect to; its host is known to resolve
  Plan plan;            // a server has its client's
  Format format = Format::kTable;
  bool threaded = false;
  transport::FabricOptions fabric;
};

// From the command line (app/command_line.h). InvalidArgument or NotFound: one line with what was
// given and what is allowed.
absl::StatusOr<Options> ReadOptions(const std::vector<std::string>& args);

std::string Help();

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_OPTIONS_H_
