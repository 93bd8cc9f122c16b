#ifndef SPECFABRIC_APP_ADMIN_SERVER_H_
#define SPECFABRIC_APP_ADMIN_SERVER_H_

// The HTTP server of a role's admin pages, for Prometheus, Kubernetes probes and people with curl.
// One thread of its own, one request at a time, GET and HEAD only. It listens before the role loads
// its model, so that a port in use is an error at once; until then every page answers 503.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "metrics/registry.h"

namespace specfabric::app {

// With the brackets that an IPv6 host in --admin_listen may do without: "::1:9100".
std::string AdminAddress(const std::string& listen);

struct AdminOptions {
  std::string listen;                     // "host:port", as AdminAddress; port 0 takes a free one
  metrics::Registry* registry = nullptr;  // must outlive the server
};

// The pages of a role that serves.
struct AdminPages {
  std::function<std::string()> live;                          // text of /livez; none: "ok"
  std::function<bool()> ready;                                // /readyz: 200 or 503
  std::map<std::string, std::function<std::string()>> pages;  // path -> JSON, e.g. /debug/sessions
};

class AdminServer {
 public:
  // Errors are ListenSocket::Open's.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(AdminOptions options);
  ~AdminServer();  // ends the thread; a request under way is cut off

  const std::string& listen_address() const;  // as bound

  void Show(AdminPages pages);
  // Back to 503. None of the pages' functions runs once it has returned.
  void Hide();

 private:
  class Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_ADMIN_SERVER_H_
