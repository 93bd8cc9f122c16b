#include "tests/gateway/http_client.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <optional>

#include "absl/strings/ascii.h"
#include "boost/asio/connect.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http.hpp"

namespace specfabric::gateway {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

struct HttpClient::Impl {
  asio::io_context io;
  asio::ip::tcp::socket socket{io};
  boost::beast::flat_buffer buffer;
  std::optional<http::response_parser<http::string_body>> stream;
  size_t taken = 0;    // of the stream's body
  std::string header;  // lines beside those of every request

  std::string Message(const std::string& method, const std::string& path, const std::string& body) {
    return method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + header +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
};

namespace {

ClientResponse Convert(const http::response<http::string_body>& message) {
  ClientResponse response;
  response.status = static_cast<int>(message.result_int());
  for (const auto& field : message) {
    response.headers[absl::AsciiStrToLower(std::string(field.name_string()))] =
        std::string(field.value());
  }
  response.body = message.body();
  return response;
}

}  // namespace

HttpClient::HttpClient(const std::string& address) : impl_(std::make_unique<Impl>()) {
  const size_t colon = address.rfind(':');
  asio::ip::tcp::resolver resolver(impl_->io);
  error_code ec;
  const auto found = resolver.resolve(address.substr(0, colon), address.substr(colon + 1), ec);
  if (!ec) asio::connect(impl_->socket, found, ec);
  const timeval minute{60, 0};
  setsockopt(impl_->socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
}

HttpClient::HttpClient(HttpClient&& other) noexcept = default;
HttpClient::~HttpClient() = default;

void HttpClient::Close() {
  error_code ignored;
  impl_->socket.close(ignored);
}

void HttpClient::SendRaw(const std::string& bytes) {
  error_code ignored;
  asio::write(impl_->socket, asio::buffer(bytes), ignored);
}

ClientResponse HttpClient::ReadResponse() {
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  error_code ec;
  http::read(impl_->socket, impl_->buffer, parser, ec);
  return ec ? ClientResponse() : Convert(parser.get());
}

ClientResponse HttpClient::ReadHeadResponse() {
  http::response_parser<http::string_body> parser;
  parser.skip(true);
  error_code ec;
  http::read(impl_->socket, impl_->buffer, parser, ec);
  return ec ? ClientResponse() : Convert(parser.get());
}

void HttpClient::ShutdownSending() {
  error_code ignored;
  impl_->socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

std::string HttpClient::ReadAll() {
  std::string all;
  error_code ec;
  asio::read(impl_->socket, asio::dynamic_buffer(all), ec);
  return all;
}

ClientResponse HttpClient::Request(const std::string& method, const std::string& path,
                                   const std::string& body) {
  SendRaw(impl_->Message(method, path, body));
  return ReadResponse();
}

void HttpClient::SetHeader(const std::string& line) { impl_->header += line + "\r\n"; }

ClientResponse HttpClient::Get(const std::string& path) { return Request("GET", path, ""); }

ClientResponse HttpClient::Post(const std::string& path, const std::string& body) {
  return Request("POST", path, body);
}

ClientResponse HttpClient::Open(const std::string& path, const std::string& body) {
  SendRaw(impl_->Message("POST", path, body));
  auto& parser = impl_->stream.emplace();
  parser.body_limit(boost::none);
  impl_->taken = 0;
  error_code ec;
  http::read_header(impl_->socket, impl_->buffer, parser, ec);
  return ec ? ClientResponse() : Convert(parser.get());
}

std::string HttpClient::NextEvent() {
  for (;;) {
    std::string next = NextEventOrComment();
    if (!next.starts_with(':')) return next;
  }
}

std::string HttpClient::NextEventOrComment() {
  auto& parser = *impl_->stream;
  for (;;) {
    const std::string& body = parser.get().body();
    const size_t end = body.find("\n\n", impl_->taken);
    if (end != std::string::npos) {
      std::string event = body.substr(impl_->taken, end - impl_->taken);
      impl_->taken = end + 2;
      if (event.starts_with(':')) return event;
      if (event.starts_with("event: ")) event.erase(0, event.find('\n') + 1);
      return event.starts_with("data: ") ? event.substr(6) : "not an event: " + event;
    }
    if (parser.is_done()) return "";
    error_code ec;
    http::read_some(impl_->socket, impl_->buffer, parser, ec);
    if (ec) return "";
  }
}

std::vector<std::string> HttpClient::RestOfEvents() {
  std::vector<std::string> events;
  for (std::string event = NextEvent(); !event.empty(); event = NextEvent()) {
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace specfabric::gateway
