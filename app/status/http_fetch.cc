#include "app/status/http_fetch.h"

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

namespace specfabric::app {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr uint64_t kMaxBody = 16 << 20;

absl::Status Unreachable(const boost::system::error_code& error) {
  return absl::UnavailableError(error == beast::error::timeout ? "no answer in time"
                                                               : error.message());
}

absl::Status Refused(const http::response<http::string_body>& response) {
  const std::string what = absl::StrCat("answered ", response.result_int());
  return response.result() == http::status::not_found ? absl::NotFoundError(what)
                                                      : absl::FailedPreconditionError(what);
}

std::string HostOf(const std::string& address, size_t colon) {
  const bool v6 = colon >= 2 && address.front() == '[' && address[colon - 1] == ']';
  return v6 ? address.substr(1, colon - 2) : address.substr(0, colon);
}

asio::awaitable<void> Fetch(Page page, std::chrono::nanoseconds timeout,
                            absl::StatusOr<std::string>* result) {
  const auto executor = co_await asio::this_coro::executor;
  boost::system::error_code error;
  const auto told = [&error] { return asio::redirect_error(asio::use_awaitable, error); };
  const size_t colon = page.address.rfind(':');
  if (colon == std::string::npos) {
    *result = absl::InvalidArgumentError("not host:port");
    co_return;
  }
  tcp::resolver resolver(executor);
  const auto endpoints = co_await resolver.async_resolve(HostOf(page.address, colon),
                                                         page.address.substr(colon + 1), told());
  if (error) {
    *result = Unreachable(error);
    co_return;
  }
  beast::tcp_stream stream(executor);
  stream.expires_after(timeout);
  co_await stream.async_connect(endpoints, told());
  http::request<http::empty_body> request(http::verb::get, page.path, 11);
  request.set(http::field::host, page.address);
  request.keep_alive(false);
  if (!error) co_await http::async_write(stream, request, told());
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBody);
  if (!error) co_await http::async_read(stream, buffer, parser, told());
  if (error) {
    *result = Unreachable(error);
  } else if (parser.get().result() != http::status::ok) {
    *result = Refused(parser.get());
  } else {
    *result = std::move(parser.get().body());
  }
}

}  // namespace

std::vector<absl::StatusOr<std::string>> FetchPages(const std::vector<Page>& pages,
                                                    base::Nanos timeout) {
  std::vector<absl::StatusOr<std::string>> results(pages.size(),
                                                   absl::UnavailableError("not asked"));
  asio::io_context io{1};
  for (size_t i = 0; i < pages.size(); ++i) {
    asio::co_spawn(io, Fetch(pages[i], std::chrono::nanoseconds(timeout), &results[i]),
                   asio::detached);
  }
  io.run();
  return results;
}

}  // namespace specfabric::app
