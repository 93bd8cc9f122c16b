#ifndef SPECFABRIC_GATEWAY_MIDDLEWARE_H_
#define SPECFABRIC_GATEWAY_MIDDLEWARE_H_

// What is the same for all routes: request ids, which web pages may read answers, API keys, and the
// access log. Runs on the io thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "boost/asio/awaitable.hpp"
#include "gateway/access_log.h"
#include "gateway/api_error.h"
#include "gateway/api_keys.h"
#include "gateway/cors.h"
#include "gateway/http_server.h"
#include "gateway/routes.h"
#include "metrics/gateway_metrics.h"

namespace specfabric::gateway {

struct MiddlewareOptions {
  // Must outlive the middleware.
  Routes* routes = nullptr;
  metrics::GatewayMetrics* metrics = nullptr;
  std::vector<std::string> cors_origins = {};
  std::shared_ptr<const ApiKeyFile> api_keys = nullptr;  // null: no key is asked for
  std::unique_ptr<AccessLog> access_log = nullptr;       // null: none
};

class Middleware {
 public:
  explicit Middleware(MiddlewareOptions options);

  // The routes, and what is done for all of them. Refers to this object.
  HttpService Service();

 private:
  boost::asio::awaitable<void> Handle(HttpExchange& exchange);
  // The error of a request without a valid key, before its body is read.
  std::optional<ApiError> CheckKey(const HttpRequest& request) const;
  HttpResponse Refuse(const ApiError& error, const HttpRequest& request) const;
  // Of every answer to the request.
  HttpHeaders Headers(const HttpRequest& request) const;

  Routes& routes_;
  metrics::GatewayMetrics& metrics_;
  const Cors cors_;
  const std::shared_ptr<const ApiKeyFile> api_keys_;
  const std::unique_ptr<AccessLog> access_log_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_MIDDLEWARE_H_
