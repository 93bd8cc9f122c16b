#ifndef SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_
#define SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_

// One client's connection; only http_server.cc and http_connection.cc use it.
//
// Closed connections and half-closed ones: a client that has closed its connection and one that has
// only shut down its sending side both send FIN. The difference shows when something is sent to
// them: the first answers with RST, the second one reads it. So the end of input alone does not
// cancel a request. While an answer is generated the connection waits for an RST; as long as
// nothing is written that could cause one (before a whole answer, or between two tokens of a
// stream), the handler is asked to send a probe, which clients have to ignore: "100 Continue"
// before an answer, a comment within an event stream. A client that shuts down its sending side
// usually does so right after its request, so it is first probed after a second, by which time most
// answers are sent. If the end of input comes later, the client has most likely closed its
// connection and is probed at once.
//
// Under TLS the end of input is close_notify, or FIN without it; it says as little about whether
// the client still reads, so all of this is the same. Different: a request that is cut off by a FIN
// without close_notify is not answered, and an answer that is followed by the end of the connection
// is followed by close_notify.

#include <chrono>
#include <functional>
#include <memory>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/thread_pool.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "gateway/http_body.h"
#include "gateway/http_server.h"
#include "gateway/http_stream.h"
#include "gateway/tls_files.h"

namespace specfabric::gateway {

// Errors as values: co_await gives (error_code, result...).
constexpr auto kNoThrow = boost::asio::as_tuple(boost::asio::use_awaitable);

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `handshakes`: the thread for them under TLS, otherwise null.
  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options,
                 boost::asio::thread_pool* handshakes)
      : stream_(std::move(socket), options.tls == nullptr ? nullptr : options.tls->context()),
        handshakes_(handshakes),
        buffer_(kMaxBuffered + options.max_header_bytes),
        watch_ended_(stream_.get_executor()),
        probe_timer_(stream_.get_executor()),
        options_(options) {}

  // Serves requests, one after another, until the connection ends.
  boost::asio::awaitable<void> Serve(const HttpService& service);
  void Close();

  // Reads while an answer is generated: otherwise a closed connection would not be noticed. What is
  // read is kept for the next request. `on_change` runs when gone() or probe_due() becomes true.
  void StartWatch(std::function<void()> on_change);
  boost::asio::awaitable<void> StopWatch();
  bool gone() const { return gone_; }
  bool probe_due() const { return probe_due_; }

  // Sends "100 Continue" to a client of HTTP/1.1 (`http11`). HTTP/1.0 has no interim answers: such
  // a client is treated as gone.
  boost::asio::awaitable<void> Probe(bool http11);

  // The response has `headers` besides its own. `head`: the request was HEAD, which is answered
  // with the header alone.
  boost::asio::awaitable<bool> WriteResponse(const HttpResponse& response,
                                             const HttpHeaders& headers, bool keep_alive,
                                             bool head);
  boost::asio::awaitable<bool> WriteStreamHeader(const char* content_type,
                                                 const HttpHeaders& headers, bool chunked);
  boost::asio::awaitable<bool> WriteChunk(const std::string& data, bool chunked);
  boost::asio::awaitable<bool> WriteLastChunk();

 private:
  // Bytes of later requests that are read while an answer is generated. After that the connection
  // is not read, and a closed one is noticed only when something is sent.
  static constexpr size_t kMaxReadAhead = 64 << 10;
  // Buffered bytes of a request besides its header: one read, and what was read ahead. Limits what
  // has no limit of its own, such as chunk extensions.
  static constexpr size_t kMaxBuffered = 2 * kMaxReadAhead;

  // Under TLS. False: it failed.
  boost::asio::awaitable<bool> Handshake();
  boost::asio::awaitable<boost::system::error_code> HandshakeElsewhere();
  void AbortHandshake();

  struct Incoming;  // a request as it is read
  boost::asio::awaitable<bool> Read(Incoming& incoming, const HttpService& service);
  boost::asio::awaitable<bool> ReadBody(Incoming& incoming, const HttpService& service);
  boost::asio::awaitable<void> RefuseRequest(const ApiError& error, const HttpRequest& request,
                                             const HttpService& service);
  void ReportAnswer(const HttpService& service, const HttpRequest& request, int status);
  boost::asio::awaitable<void> Linger();
  void ReadAhead();
  void AwaitReset();
  void ScheduleProbe(std::chrono::steady_clock::time_point at);
  void Gone();
  template <typename Serializer>
  boost::asio::awaitable<bool> Written(Serializer& serializer);

  HttpStream stream_;
  // During a handshake its thread alone uses the stream.
  boost::asio::thread_pool* const handshakes_;
  bool in_handshake_ = false;  // on the io thread
  bool handshaking_ = false;   // the same on the thread for handshakes
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer watch_ended_;
  boost::asio::steady_timer probe_timer_;
  const HttpServerOptions& options_;
  std::chrono::steady_clock::time_point received_;  // the request that is being answered
  uint64_t body_bytes_ = 0;                         // of its answer
  std::function<void()> on_change_;
  bool watching_ = false;       // between StartWatch and StopWatch
  bool watch_running_ = false;  // a read or a wait for RST is in progress
  bool input_ended_ = false;    // the client sends nothing more, but may still read
  bool probe_due_ = false;
  bool gone_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_
