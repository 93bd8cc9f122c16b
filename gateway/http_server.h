#ifndef SPECFABRIC_GATEWAY_HTTP_SERVER_H_
#define SPECFABRIC_GATEWAY_HTTP_SERVER_H_

// HTTP/1.1 server on Boost.Beast and Asio coroutines: connections, limits, streamed answers,
// clients that close their connection or shut down their sending side. Independent of what is
// served. Everything runs on the thread that runs the io_context, but for TLS handshakes, which may
// take milliseconds (RSA): they have a thread of their own.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  std::string path;  // percent-decoded, without the query
  // Of headers, empty for none.
  std::string authorization;
  std::string x_api_key;
  std::string traceparent;
  std::string origin;
  std::string requested_method;   // Access-Control-Request-Method
  std::string requested_headers;  // Access-Control-Request-Headers
  std::string request_id;         // the client's x-request-id where it may be used, or one of ours
  HttpBody body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HttpHeaders headers = {};
};

// Reported of a request whose client closed its connection before the end.
constexpr int kClientGone = 499;

// An answer that is over.
struct HttpAnswered {
  int status = 0;                    // or kClientGone
  uint64_t bytes = 0;                // of the body, as far as it was sent
  std::chrono::nanoseconds time{0};  // since the request was read
};

class HttpConnection;  // one client's connection; http_connection.h
class TlsFiles;        // tls_files.h

// One request and its answer. Lives as long as its handler runs. Reference arguments of its
// coroutines must be variables of the caller, not temporaries: GCC 12 destroys temporaries of a
// co_await expression twice.
class HttpExchange {
 public:
  HttpExchange(HttpConnection* connection, HttpRequest request, bool keep_alive, bool chunked);

  const HttpRequest& request() const { return request_; }
  // Moves the body out of request().
  HttpBody TakeBody() { return std::move(request_.body); }
  // Headers of the answer besides those that Respond or StartStream is given.
  void SetHeaders(HttpHeaders headers) { headers_ = std::move(headers); }

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

  bool answered() const { return status_ != 0; }
  int status() const { return status_; }  // of the answer; 0 before it
  bool keep_alive() const { return keep_alive_; }

 private:
  HttpConnection* connection_;
  HttpRequest request_;
  bool keep_alive_;
  bool chunked_;  // the client understands chunks; otherwise a stream ends with the connection
  int status_ = 0;
  HttpHeaders headers_;
};

// What is served. Called on the io thread.
struct HttpService {
  std::function<boost::asio::awaitable<void>(HttpExchange&)> handle;
  // The answer to a request that cannot be read (malformed or too large) or is not admitted; of the
  // request, what was read of its header.
  std::function<HttpResponse(const ApiError&, const HttpRequest&)> refuse;
  // May refuse a request before its body is read. Null: none is.
  std::function<std::optional<ApiError>(const HttpRequest& head)> admit = nullptr;
  // Told of every answer, refusals included. May be null.
  std::function<void(const HttpRequest&, const HttpAnswered&)> answered = nullptr;
};

struct HttpServerOptions {
  std::string listen;                    // "host:port", "[ipv6]:port"; port 0 takes a free one
  transport::SharedListenSocket socket;  // listens there already, or null; the server takes it
  std::shared_ptr<const TlsFiles> tls;   // null: plain HTTP
  size_t max_connections = 4096;
  size_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 16 << 20;
  std::chrono::seconds handshake_timeout{10};  // of TLS
  std::chrono::seconds idle_timeout{75};       // until the header of the next request is read
  std::chrono::seconds body_timeout{60};       // until the body is read
  std::chrono::seconds write_timeout{60};      // of one write
};

class HttpServer {
 public:
  // Errors are ListenSocket::Open's.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(boost::asio::io_context& io,
                                                           HttpServerOptions options,
                                                           HttpService service);
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
