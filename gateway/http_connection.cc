#include "gateway/http_connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "boost/asio/co_spawn.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/error.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/http.hpp"
#include "gateway/http_date.h"
#include "gateway/http_head.h"
#include "gateway/request_id.h"
#include "gateway/request_target.h"

namespace specfabric::gateway {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::steady_clock;

namespace {

constexpr const char* kServer = "specfabric";
// How long input is discarded after a refusal, before the connection is closed. Closing with unread
// input would reset the connection, and the client might not see the refusal.
constexpr std::chrono::seconds kLinger{5};
// How long the end of a TLS connection may take.
constexpr std::chrono::seconds kCloseNotify{1};
// A client that sends nothing more is probed this long after its request, and then every
// kProbeInterval.
constexpr std::chrono::seconds kFirstProbe{1};
constexpr std::chrono::seconds kProbeInterval{2};
// If the end of input comes later than this after the request, the client has most likely closed
// its connection: it is probed at once.
constexpr std::chrono::milliseconds kHalfCloseDelay{100};
constexpr int kNoContent = 204;  // has no Content-Length

// Beast's body type over HttpBody.
struct BlockBody {
  using value_type = HttpBody;
  class reader {
   public:
    template <bool is_request, typename Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& ec) { ec = {}; }
    template <typename Buffers>
    size_t put(const Buffers& buffers, error_code& ec) {
      const size_t before = body_.size();
      for (const asio::const_buffer buffer : beast::buffers_range_ref(buffers)) {
        body_.Append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      ec = {};
      return body_.size() - before;
    }
    void finish(error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

ApiError Unreadable(const error_code& ec, const HttpServerOptions& options) {
  if (ec == http::error::body_limit) {
    return {.status = 413,
            .message = "the body is too large; at most " + std::to_string(options.max_body_bytes) +
                       " bytes are allowed"};
  }
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return {.status = 431,
            .message = "the header is too large; at most " +
                       std::to_string(options.max_header_bytes) + " bytes are allowed"};
  }
  if (ec == http::error::partial_message) {
    return {.message = "the request ended before the end of its header or body"};
  }
  if (ec == http::error::bad_version) {
    return {.status = 505, .message = "the version is not HTTP/1.1 or HTTP/1.0"};
  }
  return {.message = "the request is not HTTP: " + ec.message()};
}

// Whether the request is invalid, so that the client gets an answer. Otherwise the connection was
// closed or timed out.
bool IsRequestError(const error_code& ec) {
  return ec.category() == http::make_error_code(http::error::bad_target).category();
}

// The request without its body.
HttpRequest RequestOf(const http::request<BlockBody>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.authorization = std::string(message[http::field::authorization]);
  request.x_api_key = std::string(message["x-api-key"]);
  request.traceparent = std::string(message["traceparent"]);
  request.origin = std::string(message[http::field::origin]);
  request.requested_method = std::string(message[http::field::access_control_request_method]);
  request.requested_headers = std::string(message[http::field::access_control_request_headers]);
  const auto id = message["x-request-id"];
  request.request_id = RequestIdOf({id.data(), id.size()});
  return request;
}

}  // namespace

struct HttpConnection::Incoming {
  http::request_parser<BlockBody> parser;
  HttpRequest request;
};

asio::awaitable<void> HttpConnection::Serve(const HttpService& service) {
  bool established = true;
  if (stream_.has_tls()) established = co_await Handshake();
  for (bool open = established; open;) {
    Incoming incoming;
    if (!co_await Read(incoming, service)) break;
    received_ = steady_clock::now();
    body_bytes_ = 0;
    auto& message = incoming.parser.get();
    const bool keep_alive = message.keep_alive();
    incoming.request.body = std::move(message.body());
    HttpExchange exchange(this, std::move(incoming.request), keep_alive, message.version() >= 11);
    stream_.tcp().expires_never();
    co_await service.handle(exchange);
    co_await StopWatch();
    ReportAnswer(service, exchange.request(), exchange.status());
    open = !gone_ && exchange.answered() && exchange.keep_alive();
  }
  if (stream_.has_tls() && established && !gone_) {
    stream_.tcp().expires_after(kCloseNotify);
    co_await stream_.tls().async_shutdown(kNoThrow);
  }
  error_code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.tcp().close();
}

asio::awaitable<bool> HttpConnection::Handshake() {
  probe_timer_.expires_after(options_.handshake_timeout);
  probe_timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec) self->AbortHandshake();
  });
  in_handshake_ = true;
  asio::awaitable<error_code> running = HandshakeElsewhere();
  asio::awaitable<error_code> waiting =
      asio::co_spawn(*handshakes_, std::move(running), asio::use_awaitable);
  const error_code ec = co_await std::move(waiting);
  in_handshake_ = false;
  probe_timer_.cancel();
  co_return !ec;
}

asio::awaitable<error_code> HttpConnection::HandshakeElsewhere() {
  handshaking_ = true;
  auto [ec] = co_await stream_.tls().async_handshake(HttpStream::Tls::server, kNoThrow);
  handshaking_ = false;
  co_return ec;
}

void HttpConnection::AbortHandshake() {
  asio::post(*handshakes_, [self = shared_from_this()] {
    error_code ignored;
    if (self->handshaking_) self->stream_.socket().close(ignored);
  });
}

void HttpConnection::ReportAnswer(const HttpService& service, const HttpRequest& request,
                                  int status) {
  if (service.answered == nullptr) return;
  service.answered(request, {.status = gone_ ? kClientGone : status,
                             .bytes = body_bytes_,
                             .time = steady_clock::now() - received_});
}

// False: there is no request, and a refusal was sent if possible.
asio::awaitable<bool> HttpConnection::Read(Incoming& incoming, const HttpService& service) {
  auto& parser = incoming.parser;
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  stream_.tcp().expires_after(options_.idle_timeout);
  auto [ec, count] = co_await http::async_read_header(stream_, buffer_, parser, kNoThrow);
  if (ec == http::error::end_of_stream) co_return false;
  incoming.request = RequestOf(parser.get());
  const auto target = parser.get().target();
  Parsed<std::string> path = PathOf({target.data(), target.size()});
  auto* bad = std::get_if<ApiError>(&path);
  if (bad == nullptr) incoming.request.path = std::get<std::string>(std::move(path));
  std::optional<ApiError> error;
  if (ec) {
    if (!IsRequestError(ec)) co_return false;
    error = Unreadable(ec, options_);
  } else {
    error = CheckHead(parser.get().base());
    if (!error && bad != nullptr) error = std::move(*bad);
    if (!error && service.admit != nullptr) error = service.admit(incoming.request);
  }
  if (!error) co_return co_await ReadBody(incoming, service);
  co_await RefuseRequest(*error, incoming.request, service);
  co_return false;
}

asio::awaitable<bool> HttpConnection::ReadBody(Incoming& incoming, const HttpService& service) {
  auto& parser = incoming.parser;
  if (parser.get().version() >= 11 &&
      beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> proceed(http::status::continue_, 11);
    http::response_serializer<http::empty_body> serializer(proceed);
    if (!co_await Written(serializer)) co_return false;
  }
  stream_.tcp().expires_after(options_.body_timeout);
  auto [ec, count] = co_await http::async_read(stream_, buffer_, parser, kNoThrow);
  if (!ec) co_return true;
  if (IsRequestError(ec)) {
    const ApiError error = Unreadable(ec, options_);
    co_await RefuseRequest(error, incoming.request, service);
  }
  co_return false;
}

asio::awaitable<void> HttpConnection::RefuseRequest(const ApiError& error,
                                                    const HttpRequest& request,
                                                    const HttpService& service) {
  received_ = steady_clock::now();
  body_bytes_ = 0;
  const HttpResponse response = service.refuse(error, request);
  const HttpHeaders none;
  const bool head = request.method == "HEAD";
  const bool written = co_await WriteResponse(response, none, /*keep_alive=*/false, head);
  ReportAnswer(service, request, response.status);
  if (written) co_await Linger();
}

asio::awaitable<void> HttpConnection::Linger() {
  error_code ec;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  stream_.tcp().expires_after(kLinger);
  std::string discarded(64 << 10, '\0');
  while (!ec) {
    auto [read_ec, count] =
        co_await stream_.tcp().async_read_some(asio::buffer(discarded), kNoThrow);
    ec = read_ec;
  }
}

void HttpConnection::Close() {
  if (in_handshake_) return AbortHandshake();
  stream_.tcp().close();
}

void HttpConnection::StartWatch(std::function<void()> on_change) {
  on_change_ = std::move(on_change);
  watching_ = true;
  watch_ended_.expires_at(steady_clock::time_point::max());
  // Starts the read before any write: a time limit set for a write would otherwise apply to the
  // read as well.
  ReadAhead();
}

void HttpConnection::ReadAhead() {
  if (input_ended_) return AwaitReset();
  watch_running_ = watching_ && buffer_.size() < kMaxReadAhead;
  if (!watch_running_) {
    watch_ended_.cancel();
    return;
  }
  stream_.async_read_some(
      buffer_.prepare(4096), [self = shared_from_this()](const error_code& ec, size_t count) {
        self->buffer_.commit(count);
        if (ec == asio::error::eof || ec == asio::ssl::error::stream_truncated) {
          self->input_ended_ = true;
        } else if (ec) {
          self->Gone();
        }
        self->ReadAhead();
      });
}

void HttpConnection::AwaitReset() {
  watch_running_ = watching_;
  if (!watch_running_) {
    watch_ended_.cancel();
    return;
  }
  const auto now = steady_clock::now();
  const bool half_closed = now - received_ < kHalfCloseDelay;
  ScheduleProbe(half_closed ? received_ + kFirstProbe : now);
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_error,
                              [self = shared_from_this()](const error_code&) {
                                self->Gone();
                                self->watch_running_ = false;
                                self->watch_ended_.cancel();
                              });
}

// Ending the watch also ends its operation with an error, so that alone does not mean a lost
// client.
void HttpConnection::Gone() {
  if (!std::exchange(watching_, false)) return;
  gone_ = true;
  on_change_();
}

void HttpConnection::ScheduleProbe(steady_clock::time_point at) {
  probe_due_ = false;
  probe_timer_.expires_at(at);
  probe_timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (ec || !self->watching_) return;
    self->probe_due_ = true;
    self->on_change_();
  });
}

asio::awaitable<void> HttpConnection::StopWatch() {
  watching_ = false;
  probe_due_ = false;
  probe_timer_.cancel();
  if (watch_running_) stream_.tcp().cancel();
  while (watch_running_) co_await watch_ended_.async_wait(kNoThrow);
  on_change_ = nullptr;
}

asio::awaitable<void> HttpConnection::Probe(bool http11) {
  probe_due_ = false;
  if (!http11) {
    gone_ = true;
    co_return;
  }
  http::response<http::empty_body> alive(http::status::continue_, 11);
  http::response_serializer<http::empty_body> serializer(alive);
  if (co_await Written(serializer)) ScheduleProbe(steady_clock::now() + kProbeInterval);
}

template <typename Serializer>
asio::awaitable<bool> HttpConnection::Written(Serializer& serializer) {
  stream_.tcp().expires_after(options_.write_timeout);
  auto [ec, count] = co_await http::async_write(stream_, serializer, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteResponse(const HttpResponse& response,
                                                    const HttpHeaders& headers, bool keep_alive,
                                                    bool head) {
  http::response<http::empty_body> message(static_cast<http::status>(response.status), 11);
  message.set(http::field::server, kServer);
  message.set(http::field::date, DateHeader());
  if (!response.content_type.empty()) {
    message.set(http::field::content_type, response.content_type);
  }
  for (const auto& [name, value] : headers) message.set(name, value);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive);
  if (response.status != kNoContent) message.content_length(response.body.size());
  std::ostringstream header_text;
  header_text << message.base();
  const std::string header = std::move(header_text).str();
  const std::array<asio::const_buffer, 2> parts = {
      asio::buffer(header), head ? asio::const_buffer() : asio::buffer(response.body)};
  stream_.tcp().expires_after(options_.write_timeout);
  // Writes 64 KiB at a time: the kernel copies what one call gives it, which blocks the io thread.
  auto [ec, count] = co_await asio::async_write(stream_, parts, kNoThrow);
  body_bytes_ = count - std::min(count, header.size());
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteStreamHeader(const char* content_type,
                                                        const HttpHeaders& headers, bool chunked) {
  http::response<http::empty_body> message(http::status::ok, 11);
  message.set(http::field::server, kServer);
  message.set(http::field::date, DateHeader());
  message.set(http::field::content_type, content_type);
  message.set(http::field::cache_control, "no-cache");
  message.set("X-Accel-Buffering", "no");  // proxies such as nginx pass events on as they come
  for (const auto& [name, value] : headers) message.set(name, value);
  message.chunked(chunked);
  message.keep_alive(chunked);
  http::response_serializer<http::empty_body> serializer(message);
  stream_.tcp().expires_after(options_.write_timeout);
  auto [ec, count] = co_await http::async_write_header(stream_, serializer, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteChunk(const std::string& data, bool chunked) {
  if (data.empty()) co_return !gone_;  // an empty chunk would end the body
  body_bytes_ += data.size();
  // Any write serves as a probe.
  if (input_ended_ && watching_) ScheduleProbe(steady_clock::now() + kProbeInterval);
  stream_.tcp().expires_after(options_.write_timeout);
  error_code ec;
  if (chunked) {
    const auto chunk = http::make_chunk(asio::buffer(data));
    auto [write_ec, count] = co_await asio::async_write(stream_, chunk, kNoThrow);
    ec = write_ec;
  } else {
    auto [write_ec, count] = co_await asio::async_write(stream_, asio::buffer(data), kNoThrow);
    ec = write_ec;
  }
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteLastChunk() {
  stream_.tcp().expires_after(options_.write_timeout);
  const auto last = http::make_chunk_last();
  auto [ec, count] = co_await asio::async_write(stream_, last, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

}  // namespace specfabric::gateway
