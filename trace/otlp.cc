#include "trace/otlp.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/redirect_error.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "nlohmann/json.hpp"
#include "trace/traceparent.h"

namespace specfabric::trace {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Json = nlohmann::ordered_json;

Json Value(int64_t value) { return {{"intValue", std::to_string(value)}}; }
Json Value(double value) { return {{"doubleValue", value}}; }
Json Value(const std::string& value) { return {{"stringValue", value}}; }

Json Pair(const char* key, Json value) { return {{"key", key}, {"value", std::move(value)}}; }

Json OneSpan(const Span& span, const ProcessInfo& process) {
  constexpr int kServer = 2, kInternal = 1;  // SpanKind
  Json attributes = Json::array();
  for (const Attribute& attribute : span.attributes) {
    attributes.push_back(std::visit(
        [&](const auto& value) { return Pair(attribute.key, Value(value)); }, attribute.value));
  }
  Json json = {{"traceId", TraceIdText(span.parent)}, {"spanId", SpanIdText(span.id)}};
  if (span.parent.span != 0) json["parentSpanId"] = SpanIdText(span.parent.span);
  json["name"] = span.name;
  json["kind"] = process.role == "gateway" ? kServer : kInternal;
  json["startTimeUnixNano"] = std::to_string(process.epoch + span.begin);
  json["endTimeUnixNano"] = std::to_string(process.epoch + span.end);
  json["attributes"] = std::move(attributes);
  return json;
}

asio::awaitable<void> Exchange(const OtlpEndpoint& endpoint, std::string body, base::Nanos timeout,
                               absl::Status* status) {
  const auto executor = co_await asio::this_coro::executor;
  boost::system::error_code error;
  const auto told = [&error] { return asio::redirect_error(asio::use_awaitable, error); };
  tcp::resolver resolver(executor);
  const auto found = co_await resolver.async_resolve(endpoint.host, endpoint.port, told());
  beast::tcp_stream stream(executor);
  stream.expires_after(std::chrono::nanoseconds(timeout));
  if (!error) co_await stream.async_connect(found, told());
  http::request<http::string_body> request(http::verb::post, endpoint.path, 11);
  request.set(http::field::host, absl::StrCat(endpoint.host, ":", endpoint.port));
  request.set(http::field::content_type, "application/json");
  request.keep_alive(false);
  request.body() = std::move(body);
  request.prepare_payload();
  if (!error) co_await http::async_write(stream, request, told());
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  if (!error) co_await http::async_read(stream, buffer, response, told());
  if (error) {
    *status = absl::UnavailableError(error == beast::error::timeout ? "no answer in time"
                                                                    : error.message());
  } else if (response.result() != http::status::ok) {
    *status = absl::FailedPreconditionError(absl::StrCat("answered ", response.result_int()));
  }
}

}  // namespace

absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(const std::string& url) {
  const auto wrong = [&url] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", url, "' is no OTLP endpoint: give http://host:port or with a path"));
  };
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return wrong();
  const size_t slash = url.find('/', kScheme.size());
  const std::string authority = url.substr(kScheme.size(), slash - kScheme.size());
  const size_t colon = authority.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == authority.size()) return wrong();
  OtlpEndpoint endpoint = {.host = authority.substr(0, colon),
                           .port = authority.substr(colon + 1),
                           .path = slash == std::string::npos || slash + 1 == url.size()
                                       ? "/v1/traces"
                                       : url.substr(slash)};
  if (endpoint.port.find_first_not_of("0123456789") != std::string::npos) return wrong();
  if (endpoint.host.front() == '[' && endpoint.host.back() == ']') {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  return endpoint;
}

std::string OtlpBody(const std::vector<Span>& spans, const ProcessInfo& process) {
  Json list = Json::array();
  for (const Span& span : spans) {
    if (span.parent.traced()) list.push_back(OneSpan(span, process));
  }
  const Json resource = {
      {"attributes", Json::array({Pair("service.name", Value("specfabric-" + process.role)),
                                  Pair("service.instance.id", Value(process.instance)),
                                  Pair("service.version", Value(process.version)),
                                  Pair("specfabric.listen", Value(process.address)),
                                  Pair("host.name", Value(process.host)),
                                  Pair("process.pid", Value(process.pid))})}};
  const Json scope = {{"scope", {{"name", "specfabric"}}}, {"spans", std::move(list)}};
  const Json request = {
      {"resourceSpans",
       Json::array({Json{{"resource", resource}, {"scopeSpans", Json::array({scope})}}})}};
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status PostOtlp(const OtlpEndpoint& endpoint, std::string body, base::Nanos timeout) {
  absl::Status status;
  asio::io_context io{1};
  asio::co_spawn(io, Exchange(endpoint, std::move(body), timeout, &status), asio::detached);
  io.run();
  return status;
}

}  // namespace specfabric::trace
