#ifndef SPECFABRIC_GATEWAY_ACCESS_LOG_H_
#define SPECFABRIC_GATEWAY_ACCESS_LOG_H_

// One line for every request that was answered (--access_log), written by a thread of its own to
// where the process logs: the io thread never waits for it. If lines come faster than they are
// written, the oldest are dropped.

#include <memory>

#include "gateway/http_server.h"
#include "gateway/tenants.h"
#include "spdlog/async_logger.h"

namespace specfabric::gateway {

class AccessLog {
 public:
  // Writes to the sinks that the default logger has now. `tenants` must outlive the log.
  explicit AccessLog(const Tenants* tenants);
  // Writes what is left.
  ~AccessLog();

  void Add(const HttpRequest& request, const HttpAnswered& answered);

 private:
  const Tenants& tenants_;
  std::shared_ptr<spdlog::details::thread_pool> thread_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ACCESS_LOG_H_
