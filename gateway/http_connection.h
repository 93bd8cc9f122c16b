#ifndef SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_
#define SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_

// One client's connection; only http_server.cc and http_connection.cc use it.
//
// How a client that goes away is told from one that has only said all it has to say: both end their
// sending (FIN), and nothing tells them apart but what comes back when something is sent to them. A
// client that is gone answers with RST; one that has shut down its sending side reads on. So the
// end of input alone ends nothing. While an answer is made the connection waits for the RST, and
// where nothing is written that could cause it (a whole answer, a stream between two tokens), the
// handler is asked for a probe: something that clients have to ignore, "100 Continue" before an
// answer and a comment within an event stream. A client that shuts down its sending side does so
// right behind its request; it is not asked in the request's first second, within which most
// answers come. One whose sending ends later is asked at once.

#include <chrono>
#include <functional>
#include <memory>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "gateway/http_body.h"
#include "gateway/http_server.h"

namespace specfabric::gateway {

// Errors as values: co_await gives (error_code, result...).
constexpr auto kNoThrow = boost::asio::as_tuple(boost::asio::use_awaitable);

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options)
      : stream_(std::move(socket)),
        buffer_(kMaxBuffered + options.max_header_bytes),
        watch_ended_(stream_.get_executor()),
        probe_timer_(stream_.get_executor()),
        options_(options) {}

  // Requests one after another until the connection ends.
  boost::asio::awaitable<void> Serve(const HttpServer::Handler& handler,
                                     const HttpServer::Refuse& refuse);
  void Close();

  // While an answer is made, somebody has to read, or a closed connection would go unnoticed. What
  // is read is kept for the next request. `on_change` runs when gone() or probe_due() has become
  // true.
  void StartWatch(std::function<void()> on_change);
  boost::asio::awaitable<void> StopWatch();
  bool gone() const { return gone_; }
  bool probe_due() const { return probe_due_; }

  // To a client of HTTP/1.1 (`http11`) "100 Continue". One of HTTP/1.0 knows no such answers: it is
  // taken for gone.
  boost::asio::awaitable<void> Probe(bool http11);

  // `head`: the request was HEAD, which is answered with the header alone.
  boost::asio::awaitable<bool> WriteResponse(const HttpResponse& response, bool keep_alive,
                                             bool head);
  boost::asio::awaitable<bool> WriteStreamHeader(const char* content_type,
                                                 const HttpHeaders& headers, bool chunked);
  boost::asio::awaitable<bool> WriteChunk(const std::string& data, bool chunked);
  boost::asio::awaitable<bool> WriteLastChunk();

 private:
  // Bytes of further requests that are taken in while an answer is made; past it nobody reads, and
  // a client that goes away is noticed when something is sent to it.
  static constexpr size_t kMaxReadAhead = 64 << 10;
  // Of a request, beside its header: what is read at once, and behind it what was read ahead.
  // Bounds what has no other bound, such as extensions of chunks.
  static constexpr size_t kMaxBuffered = 2 * kMaxReadAhead;

  struct Incoming;  // a request as it is read
  boost::asio::awaitable<bool> Read(Incoming& incoming, const HttpServer::Refuse& refuse);
  boost::asio::awaitable<bool> ReadBody(Incoming& incoming, const HttpServer::Refuse& refuse);
  boost::asio::awaitable<void> RefuseRequest(const ApiError& error, bool head,
                                             const HttpServer::Refuse& refuse);
  boost::asio::awaitable<void> Linger();
  void ReadAhead();
  void AwaitReset();
  void ScheduleProbe(std::chrono::steady_clock::time_point at);
  void Gone();
  template <typename Serializer>
  boost::asio::awaitable<bool> Written(Serializer& serializer);

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer watch_ended_;
  boost::asio::steady_timer probe_timer_;
  const HttpServerOptions& options_;
  std::chrono::steady_clock::time_point received_;  // the request that is being answered
  std::function<void()> on_change_;
  bool watching_ = false;       // wanted
  bool watch_running_ = false;  // a read or a wait for RST is under way
  bool input_ended_ = false;    // the client sends nothing more; whether it still reads is open
  bool probe_due_ = false;
  bool gone_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_
