#ifndef SPECFABRIC_APP_ADMIN_SERVER_H_
#define SPECFABRIC_APP_ADMIN_SERVER_H_

// The small HTTP server that every role has beside its work: what Prometheus, Kubernetes probes and
// people with curl ask. One thread of its own, one request at a time, GET only.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "metrics/registry.h"

namespace specfabric::app {

struct AdminOptions {
  std::string listen;                     // "host:port"; port 0 takes a free one
  metrics::Registry* registry = nullptr;  // must outlive the server
  std::function<std::string()> live;      // text of /livez; none: "ok"
  std::function<bool()> ready;            // /readyz: 200 or 503
  std::map<std::string, std::function<std::string()>> pages;  // path -> JSON, e.g. /debug/sessions
};

class AdminServer {
 public:
  // AlreadyExists: the port is taken; InvalidArgument: not an address of this machine.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(AdminOptions options);
  ~AdminServer();  // ends the thread; a request under way is cut off

  const std::string& listen_address() const;  // as bound

 private:
  class Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_ADMIN_SERVER_H_
