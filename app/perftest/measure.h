#ifndef SPECFABRIC_APP_PERFTEST_MEASURE_H_
#define SPECFABRIC_APP_PERFTEST_MEASURE_H_

// The two ends of a measurement, over either port (inline_port.h, threaded_port.h).

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "app/perftest/plan.h"

namespace specfabric::perftest {

struct Samples {
  std::string wire;                // of the connection
  std::string payload_wire;        // that carried the tensors' bytes; empty: not known
  std::string gpudirect;           // where RDMA carried GPU memory: how it comes at it
  uint64_t payload_bytes = 0;      // of one message; of kTree request and reply together
  std::vector<double> one_way_us;  // one an iteration: half its round trip; empty for kBandwidth
  double seconds = 0;              // all iterations
  uint64_t bytes_copied = 0;       // of payloads, by our transport, on this side
};

// Registers the memory that the plan takes.
template <typename Port>
absl::Status Prepare(Port& port, const Plan& plan);

// Tells the connected server the plan, and carries it out. After Prepare.
template <typename Port>
absl::StatusOr<Samples> RunClient(Port& port, const Plan& plan);

// Takes the connected client's plan, and serves it until the client closes. Anything but that is an
// error.
template <typename Port>
absl::Status RunServer(Port& port);

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_MEASURE_H_
