#include "gateway/http_server.h"

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/thread_pool.hpp"
#include "gateway/http_connection.h"
#include "gateway/listen.h"
#include "spdlog/spdlog.h"
#include "transport/accept_failures.h"

namespace specfabric::gateway {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

HttpExchange::HttpExchange(HttpConnection* connection, HttpRequest request, bool keep_alive,
                           bool chunked)
    : connection_(connection),
      request_(std::move(request)),
      keep_alive_(keep_alive),
      chunked_(chunked) {}

void HttpExchange::WatchClient(std::function<void()> on_change) {
  connection_->StartWatch(std::move(on_change));
}

asio::awaitable<void> HttpExchange::EndWatch() { co_await connection_->StopWatch(); }

bool HttpExchange::gone() const { return connection_->gone(); }

bool HttpExchange::probe_due() const { return connection_->probe_due(); }

asio::awaitable<void> HttpExchange::Probe() {
  // A version of HTTP that has chunks has interim answers, too.
  co_await connection_->Probe(/*http11=*/chunked_);
}

asio::awaitable<void> HttpExchange::Respond(const HttpResponse& response) {
  status_ = response.status;
  co_await connection_->WriteResponse(response, headers_, keep_alive_, request_.method == "HEAD");
}

asio::awaitable<bool> HttpExchange::StartStream(const char* content_type,
                                                const HttpHeaders& headers) {
  status_ = 200;
  keep_alive_ = keep_alive_ && chunked_;
  headers_.insert(headers_.end(), headers.begin(), headers.end());
  co_return co_await connection_->WriteStreamHeader(content_type, headers_, chunked_);
}

asio::awaitable<bool> HttpExchange::Send(const std::string& data) {
  co_return co_await connection_->WriteChunk(data, chunked_);
}

asio::awaitable<bool> HttpExchange::EndStream() {
  if (!chunked_) co_return !gone();
  co_return co_await connection_->WriteLastChunk();
}

class HttpServer::Impl {
 public:
  Impl(asio::io_context& io, HttpServerOptions options, HttpService service)
      : io_(io),
        options_(std::move(options)),
        service_(std::move(service)),
        acceptor_(io),
        pause_(io) {
    if (options_.tls != nullptr) handshakes_.emplace(1);
  }
  ~Impl() {
    if (handshakes_) handshakes_->join();
  }

  absl::Status Listen();
  asio::awaitable<void> Accept();
  void Stop();
  const std::string& address() const { return address_; }
  size_t connections() const { return connections_.size(); }

 private:
  asio::awaitable<void> Run(std::shared_ptr<HttpConnection> connection);
  asio::awaitable<void> Pause(std::chrono::nanoseconds time);

  asio::io_context& io_;
  HttpServerOptions options_;
  const HttpService service_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  transport::AcceptFailures accept_failures_;
  std::string address_;
  std::set<HttpConnection*> connections_;
  std::optional<asio::thread_pool> handshakes_;  // of one thread
  bool stopping_ = false;
};

absl::Status HttpServer::Impl::Listen() {
  if (options_.socket == nullptr) {
    auto opened = transport::ListenSocket::Open(options_.listen);
    if (!opened.ok()) return opened.status();
    options_.socket = std::make_shared<transport::ListenSocket>(*std::move(opened));
  }
  address_ = options_.socket->address();
  return gateway::Listen(std::move(*options_.socket), acceptor_);
}

asio::awaitable<void> HttpServer::Impl::Pause(std::chrono::nanoseconds time) {
  pause_.expires_after(time);
  co_await pause_.async_wait(kNoThrow);
}

asio::awaitable<void> HttpServer::Impl::Accept() {
  while (!stopping_) {
    if (connections_.size() >= options_.max_connections) {
      co_await Pause(std::chrono::milliseconds(20));
      continue;
    }
    auto [ec, socket] = co_await acceptor_.async_accept(kNoThrow);
    if (stopping_) break;
    if (ec) {
      accept_failures_.Report("http", address_, ec.message(), base::Now());
      co_await Pause(std::chrono::nanoseconds(transport::AcceptFailures::kPause));
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    auto connection = std::make_shared<HttpConnection>(std::move(socket), options_,
                                                       handshakes_ ? &*handshakes_ : nullptr);
    asio::co_spawn(io_, Run(std::move(connection)), [](const std::exception_ptr& error) {
      if (error) spdlog::error("http connection ended by an exception");
    });
  }
}

asio::awaitable<void> HttpServer::Impl::Run(std::shared_ptr<HttpConnection> connection) {
  connections_.insert(connection.get());
  struct Leave {
    std::set<HttpConnection*>& connections;
    HttpConnection* connection;
    ~Leave() { connections.erase(connection); }
  } leave{connections_, connection.get()};
  co_await connection->Serve(service_);
}

void HttpServer::Impl::Stop() {
  stopping_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (HttpConnection* connection : connections_) connection->Close();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(asio::io_context& io,
                                                              HttpServerOptions options,
                                                              HttpService service) {
  auto impl = std::make_unique<Impl>(io, std::move(options), std::move(service));
  if (absl::Status status = impl->Listen(); !status.ok()) return status;
  asio::co_spawn(io, impl->Accept(), asio::detached);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address(); }
size_t HttpServer::connections() const { return impl_->connections(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace specfabric::gateway
