#ifndef SPECFABRIC_TRANSPORT_ACCEPT_FAILURES_H_
#define SPECFABRIC_TRANSPORT_ACCEPT_FAILURES_H_

// For servers that cannot accept connections, most likely because the process has no file
// descriptor left: they try again after kPause, because trying at once would occupy a core in vain,
// and log one line for failures that follow each other closely.

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace specfabric::transport {

class AcceptFailures {
 public:
  static constexpr base::Nanos kPause = 100 * base::kMillisecond;

  // server: its name in the log; address: where it listens.
  void Report(std::string_view server, const std::string& address, std::string_view why,
              base::Nanos now);

 private:
  std::optional<base::Nanos> last_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ACCEPT_FAILURES_H_
