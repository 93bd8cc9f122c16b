#include "app/admin_server.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/redirect_error.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "gateway/listen.h"
#include "transport/accept_failures.h"
#include "transport/listen_socket.h"

namespace specfabric::app {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

namespace {

constexpr auto kIdleLimit = std::chrono::seconds(30);
constexpr size_t kMaxRequestBytes = 16 << 10;

}  // namespace

std::string AdminAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos || listen.front() == '[') return listen;
  const std::string host = listen.substr(0, colon);
  boost::system::error_code error;
  asio::ip::make_address_v6(host, error);
  return error ? listen : absl::StrCat("[", host, "]", listen.substr(colon));
}

class AdminServer::Impl {
 public:
  explicit Impl(AdminOptions options) : options_(std::move(options)) {}
  ~Impl() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start();
  const std::string& listen_address() const { return listen_address_; }
  void Set(std::optional<AdminPages> pages) {
    std::lock_guard lock(mutex_);
    pages_ = std::move(pages);
  }

 private:
  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(tcp::socket socket);
  using Response = http::response<http::string_body>;
  Response Answer(const http::request<http::empty_body>& request);
  void Fill(const std::string& path, Response* response);

  const AdminOptions options_;
  std::string listen_address_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  transport::AcceptFailures accept_failures_;
  std::mutex mutex_;
  std::optional<AdminPages> pages_;  // guarded by mutex_, while their functions run too
  std::thread thread_;
};

absl::Status AdminServer::Impl::Start() {
  auto socket = transport::ListenSocket::Open(AdminAddress(options_.listen));
  if (!socket.ok()) return socket.status();
  listen_address_ = socket->address();
  if (absl::Status listens = gateway::Listen(*std::move(socket), acceptor_); !listens.ok()) {
    return listens;
  }
  asio::co_spawn(io_, Accept(), asio::detached);
  thread_ = std::thread([this] { io_.run(); });
  return absl::OkStatus();
}

asio::awaitable<void> AdminServer::Impl::Accept() {
  asio::steady_timer pause(io_);
  for (;;) {
    boost::system::error_code error;
    tcp::socket socket =
        co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (!error) {
      asio::co_spawn(io_, Serve(std::move(socket)), asio::detached);
      continue;
    }
    accept_failures_.Report("admin", listen_address_, error.message(), base::Now());
    pause.expires_after(std::chrono::nanoseconds(transport::AcceptFailures::kPause));
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

AdminServer::Impl::Response AdminServer::Impl::Answer(
    const http::request<http::empty_body>& request) {
  Response response(http::status::ok, request.version());
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  std::string path(request.target());
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = "allowed are GET and HEAD\n";
  } else {
    Fill(path.substr(0, path.find('?')), &response);
  }
  response.keep_alive(request.keep_alive());
  response.prepare_payload();
  return response;
}

void AdminServer::Impl::Fill(const std::string& path, Response* response) {
  std::lock_guard lock(mutex_);
  if (!pages_) {
    response->result(http::status::service_unavailable);
    response->body() = "starting or ending\n";
    return;
  }
  const auto page = pages_->pages.find(path);
  if (path == "/metrics") {
    response->set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response->body() = options_.registry->Render();
  } else if (path == "/livez") {
    response->body() = pages_->live ? pages_->live() : "ok\n";
  } else if (path == "/readyz") {
    const bool ready = !pages_->ready || pages_->ready();
    if (!ready) response->result(http::status::service_unavailable);
    response->body() = ready ? "ok\n" : "draining\n";
  } else if (page != pages_->pages.end()) {
    response->set(http::field::content_type, "application/json");
    response->body() = page->second();
  } else {
    response->result(http::status::not_found);
    response->body() = absl::StrCat(path, ": no such page\n");
  }
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
    // No body on HEAD: the client would read it as the next answer.
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
void AdminServer::Show(AdminPages pages) { impl_->Set(std::move(pages)); }
void AdminServer::Hide() { impl_->Set(std::nullopt); }

}  // namespace specfabric::app
