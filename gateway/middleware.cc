#include "gateway/middleware.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "gateway/request_id.h"
#include "gateway/tenants.h"

namespace specfabric::gateway {

namespace asio = boost::asio;

Middleware::Middleware(MiddlewareOptions options)
    : routes_(*options.routes),
      metrics_(*options.metrics),
      cors_(options.cors_origins),
      api_keys_(std::move(options.api_keys)),
      access_log_(std::move(options.access_log)) {}

HttpService Middleware::Service() {
  HttpService service;
  service.handle = [this](HttpExchange& exchange) { return Handle(exchange); };
  service.refuse = [this](const ApiError& error, const HttpRequest& request) {
    return Refuse(error, request);
  };
  if (api_keys_ != nullptr) {
    service.admit = [this](const HttpRequest& request) { return CheckKey(request); };
  }
  if (access_log_ != nullptr) {
    service.answered = [this](const HttpRequest& request, const HttpAnswered& answered) {
      access_log_->Add(request, answered);
    };
  }
  return service;
}

std::optional<ApiError> Middleware::CheckKey(const HttpRequest& request) const {
  // What probes, Prometheus and routers ask for. Browsers ask without a key whether they may send
  // one.
  static constexpr std::array<std::string_view, 5> kOpen = {"/livez", "/readyz", "/health",
                                                            "/metrics", "/version"};
  const bool open = std::find(kOpen.begin(), kOpen.end(), request.path) != kOpen.end();
  if (open || cors_.IsPreflight(request)) return std::nullopt;
  const std::string_view key = ApiKeyOf(request.authorization, request.x_api_key);
  if (api_keys_->Has(key)) return std::nullopt;
  // Does not repeat the key, which may be a valid one with a slip of the pen.
  return ApiError{.status = 401,
                  .message = key.empty() ? "there is no API key; send one as Authorization: Bearer "
                                           "KEY or as x-api-key: KEY"
                                         : "the API key is not one of this server's",
                  .code = "invalid_api_key"};
}

HttpHeaders Middleware::Headers(const HttpRequest& request) const {
  HttpHeaders headers = cors_.Headers(request.origin);
  headers.emplace_back(kRequestIdHeader, request.request_id);
  return headers;
}

asio::awaitable<void> Middleware::Handle(HttpExchange& exchange) {
  exchange.SetHeaders(Headers(exchange.request()));
  if (!cors_.IsPreflight(exchange.request())) {
    co_await routes_.Handle(exchange);
    co_return;
  }
  Parsed<HttpResponse> answer = cors_.Preflight(exchange.request());
  const auto* error = std::get_if<ApiError>(&answer);
  const HttpResponse response = error != nullptr ? routes_.Refuse(*error, exchange.request())
                                                 : std::get<HttpResponse>(std::move(answer));
  if (error == nullptr) metrics_.CountRequest(metrics::Endpoint::kOther, response.status);
  co_await exchange.Respond(response);
}

HttpResponse Middleware::Refuse(const ApiError& error, const HttpRequest& request) const {
  HttpResponse response = routes_.Refuse(error, request);
  for (auto& header : Headers(request)) response.headers.push_back(std::move(header));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace specfabric::gateway
