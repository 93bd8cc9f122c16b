#include "app/admin_server.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
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

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

namespace {

constexpr auto kIdleLimit = std::chrono::seconds(30);
constexpr size_t kMaxRequestBytes = 16 << 10;

absl::StatusOr<tcp::endpoint> Endpoint(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  int port = 0;
  boost::system::error_code error;
  const auto host = asio::ip::make_address(listen.substr(0, colon), error);
  if (colon == std::string::npos || error || !absl::SimpleAtoi(listen.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--admin_listen=", listen, ": allowed is address:port, e.g. 127.0.0.1:9100"));
  }
  return tcp::endpoint(host, static_cast<unsigned short>(port));
}

}  // namespace

class AdminServer::Impl {
 public:
  explicit Impl(AdminOptions options) : options_(std::move(options)) {}
  ~Impl() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start();
  const std::string& listen_address() const { return listen_address_; }

 private:
  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(tcp::socket socket);
  http::response<http::string_body> Answer(const http::request<http::empty_body>& request) const;

  const AdminOptions options_;
  std::string listen_address_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  std::thread thread_;
};

absl::Status AdminServer::Impl::Start() {
  auto endpoint = Endpoint(options_.listen);
  if (!endpoint.ok()) return endpoint.status();
  boost::system::error_code error;
  acceptor_.open(endpoint->protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(*endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    const std::string why =
        absl::StrCat("cannot listen on ", options_.listen, ": ", error.message());
    return error == asio::error::address_in_use ? absl::AlreadyExistsError(why)
                                                : absl::InvalidArgumentError(why);
  }
  const tcp::endpoint bound = acceptor_.local_endpoint();
  listen_address_ = bound.address().is_v6()
                        ? absl::StrCat("[", bound.address().to_string(), "]:", bound.port())
                        : absl::StrCat(bound.address().to_string(), ":", bound.port());
  asio::co_spawn(io_, Accept(), asio::detached);
  thread_ = std::thread([this] { io_.run(); });
  return absl::OkStatus();
}

asio::awaitable<void> AdminServer::Impl::Accept() {
  for (;;) {
    boost::system::error_code error;
    tcp::socket socket =
        co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    // Out of descriptors, say: the probes that follow find out whether that passed.
    if (!error) asio::co_spawn(io_, Serve(std::move(socket)), asio::detached);
  }
}

http::response<http::string_body> AdminServer::Impl::Answer(
    const http::request<http::empty_body>& request) const {
  http::response<http::string_body> response(http::status::ok, request.version());
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  std::string path(request.target());
  path = path.substr(0, path.find('?'));
  const auto page = options_.pages.find(path);
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = "allowed are GET and HEAD\n";
  } else if (path == "/metrics") {
    response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response.body() = options_.registry->Render();
  } else if (path == "/livez") {
    response.body() = options_.live ? options_.live() : "ok\n";
  } else if (path == "/readyz") {
    const bool ready = !options_.ready || options_.ready();
    if (!ready) response.result(http::status::service_unavailable);
    response.body() = ready ? "ok\n" : "draining\n";
  } else if (page != options_.pages.end()) {
    response.set(http::field::content_type, "application/json");
    response.body() = page->second();
  } else {
    response.result(http::status::not_found);
    response.body() = absl::StrCat(path, ": no such page\n");
  }
  response.keep_alive(request.keep_alive());
  response.prepare_payload();
  return response;
}

asio::awaitable<void> AdminServer::Impl::Serve(tcp::socket socket) {
  beast::tcp_stream stream(std::move(socket));
  beast::flat_buffer buffer(kMaxRequestBytes);
  for (bool keep_alive = true; keep_alive;) {
    http::request<http::empty_body> request;
    boost::system::error_code error;
    stream.expires_after(kIdleLimit);
    co_await http::async_read(stream, buffer, request,
                              asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    auto response = Answer(request);
    keep_alive = response.keep_alive();
    http::response_serializer<http::string_body> serializer(response);
    // HEAD is GET without the body: its client would take one for the next answer.
    if (request.method() == http::verb::head) {
      co_await http::async_write_header(stream, serializer,
                                        asio::redirect_error(asio::use_awaitable, error));
    } else {
      co_await http::async_write(stream, serializer,
                                 asio::redirect_error(asio::use_awaitable, error));
    }
    if (error) co_return;
  }
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminServer::~AdminServer() = default;

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(AdminOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (absl::Status started = impl->Start(); !started.ok()) return started;
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

const std::string& AdminServer::listen_address() const { return impl_->listen_address(); }

}  // namespace specfabric::app
