#ifndef SPECFABRIC_GATEWAY_HTTP_SERVER_H_
#define SPECFABRIC_GATEWAY_HTTP_SERVER_H_

// HTTP/1.1 server on Boost.Beast and Asio coroutines: connections, limits, streamed answers,
// clients that close their connection or shut down their sending side. Independent of what is
// served. Everything runs on the thread that runs the io_context.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/io_context.hpp"
#include "gateway/api_error.h"
#include "gateway/http_body.h"
#include "transport/listen_socket.h"

namespace specfabric::gateway {

struct HttpRequest {
  std::string method;
  std::string path;           // percent-decoded, without the query
  std::string authorization;  // of the header, empty for none
  std::string traceparent;    // the same
  HttpBody body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HttpHeaders headers = {};
};

class HttpConnection;  // one client's connection; http_connection.h

// One request and its answer. Lives as long as its handler runs. Reference arguments of its
// coroutines must be variables of the caller, not temporaries: GCC 12 destroys temporaries of a
// co_await expression twice.
class HttpExchange {
 public:
  HttpExchange(HttpConnection* connection, HttpRequest request, bool keep_alive, bool chunked);

  const HttpRequest& request() const { return request_; }
  // Moves the body out of request().
  HttpBody TakeBody() { return std::move(request_.body); }

  // Until the handler returns, `on_change` runs as soon as gone() or probe_due() becomes true. Call
  // at most once a request. What `on_change` refers to must live until the exchange ends or
  // EndWatch returns.
  void WatchClient(std::function<void()> on_change);
  boost::asio::awaitable<void> EndWatch();
  // The client has closed its connection, and not just its sending side.
  bool gone() const;
  // The client has shut down its sending side, and only sending something shows whether it still
  // reads. Call Probe before the answer; within a stream, Send something that clients ignore.
  // http_connection.h explains this.
  bool probe_due() const;
  boost::asio::awaitable<void> Probe();

  // Sends the whole answer. Call it once, and not together with a stream. The answer to HEAD is the
  // header alone.
  boost::asio::awaitable<void> Respond(const HttpResponse& response);

  // A streamed answer: StartStream, any number of Send, EndStream. False: the client is gone.
  boost::asio::awaitable<bool> StartStream(const char* content_type, const HttpHeaders& headers);
  boost::asio::awaitable<bool> Send(const std::string& data);
  boost::asio::awaitable<bool> EndStream();

  bool answered() const { return answered_; }
  bool keep_alive() const { return keep_alive_; }

 private:
  HttpConnection* connection_;
  HttpRequest request_;
  bool keep_alive_;
  bool chunked_;  // the client understands chunks; otherwise a stream ends with the connection
  bool answered_ = false;
};

struct HttpServerOptions {
  std::string listen;                    // "host:port", "[ipv6]:port"; port 0 takes a free one
  transport::SharedListenSocket socket;  // listens there already, or null; the server takes it
  size_t max_connections = 4096;
  size_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 16 << 20;
  std::chrono::seconds idle_timeout{75};   // until the header of the next request is read
  std::chrono::seconds body_timeout{60};   // until the body is read
  std::chrono::seconds write_timeout{60};  // of one write
};

class HttpServer {
 public:
  using Handler = std::function<boost::asio::awaitable<void>(HttpExchange&)>;
  // The answer to a request that cannot be read: malformed or too large.
  using Refuse = std::function<HttpResponse(const ApiError&)>;

  // Errors are ListenSocket::Open's.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(boost::asio::io_context& io,
                                                           HttpServerOptions options,
                                                           Handler handler, Refuse refuse);
  // Only after the io_context has stopped, or before it has started.
  ~HttpServer();

  const std::string& address() const;  // as bound
  size_t connections() const;

  // Closes all connections and accepts no more; their handlers see the client as gone. Call on the
  // io thread.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_SERVER_H_
