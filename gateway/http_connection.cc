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

#include "boost/asio/write.hpp"
#include "boost/beast/http.hpp"
#include "gateway/http_head.h"
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
// A client that sends nothing more is probed this long after its request, and then every
// kProbeInterval.
constexpr std::chrono::seconds kFirstProbe{1};
constexpr std::chrono::seconds kProbeInterval{2};
// If the end of input comes later than this after the request, the client has most likely closed
// its connection: it is probed at once.
constexpr std::chrono::milliseconds kHalfCloseDelay{100};

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

HttpRequest RequestOf(http::request<BlockBody>& message, std::string path) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = std::move(path);
  request.authorization = std::string(message[http::field::authorization]);
  request.traceparent = std::string(message["traceparent"]);
  request.body = std::move(message.body());
  return request;
}

}  // namespace

struct HttpConnection::Incoming {
  http::request_parser<BlockBody> parser;
  std::string path;
};

asio::awaitable<void> HttpConnection::Serve(const HttpServer::Handler& handler,
                                            const HttpServer::Refuse& refuse) {
  for (bool open = true; open;) {
    Incoming incoming;
    if (!co_await Read(incoming, refuse)) break;
    received_ = steady_clock::now();
    auto& message = incoming.parser.get();
    const bool keep_alive = message.keep_alive();
    HttpExchange exchange(this, RequestOf(message, std::move(incoming.path)), keep_alive,
                          message.version() >= 11);
    stream_.expires_never();
    co_await handler(exchange);
    co_await StopWatch();
    open = !gone_ && exchange.answered() && exchange.keep_alive();
  }
  error_code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

// False: there is no request, and a refusal was sent if possible.
asio::awaitable<bool> HttpConnection::Read(Incoming& incoming, const HttpServer::Refuse& refuse) {
  auto& parser = incoming.parser;
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  stream_.expires_after(options_.idle_timeout);
  auto [ec, count] = co_await http::async_read_header(stream_, buffer_, parser, kNoThrow);
  if (ec == http::error::end_of_stream) co_return false;
  const bool head = parser.get().method() == http::verb::head;
  std::optional<ApiError> error;
  if (ec) {
    if (!IsRequestError(ec)) co_return false;
    error = Unreadable(ec, options_);
  } else {
    error = CheckHead(parser.get().base());
    const auto target = parser.get().target();
    Parsed<std::string> path = PathOf({target.data(), target.size()});
    if (auto* bad = std::get_if<ApiError>(&path)) {
      if (!error) error = std::move(*bad);
    } else {
      incoming.path = std::get<std::string>(std::move(path));
    }
  }
  if (!error) co_return co_await ReadBody(incoming, refuse);
  co_await RefuseRequest(*error, head, refuse);
  co_return false;
}

asio::awaitable<bool> HttpConnection::ReadBody(Incoming& incoming,
                                               const HttpServer::Refuse& refuse) {
  auto& parser = incoming.parser;
  const bool head = parser.get().method() == http::verb::head;
  if (parser.get().version() >= 11 &&
      beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> proceed(http::status::continue_, 11);
    http::response_serializer<http::empty_body> serializer(proceed);
    if (!co_await Written(serializer)) co_return false;
  }
  stream_.expires_after(options_.body_timeout);
  auto [ec, count] = co_await http::async_read(stream_, buffer_, parser, kNoThrow);
  if (!ec) co_return true;
  if (IsRequestError(ec)) {
    const ApiError error = Unreadable(ec, options_);
    co_await RefuseRequest(error, head, refuse);
  }
  co_return false;
}

asio::awaitable<void> HttpConnection::RefuseRequest(const ApiError& error, bool head,
                                                    const HttpServer::Refuse& refuse) {
  const HttpResponse response = refuse(error);
  if (co_await WriteResponse(response, /*keep_alive=*/false, head)) co_await Linger();
}

asio::awaitable<void> HttpConnection::Linger() {
  error_code ec;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  stream_.expires_after(kLinger);
  std::string discarded(64 << 10, '\0');
  while (!ec) {
    auto [read_ec, count] = co_await stream_.async_read_some(asio::buffer(discarded), kNoThrow);
    ec = read_ec;
  }
}

void HttpConnection::Close() { stream_.close(); }

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
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](const error_code& ec, size_t count) {
                            self->buffer_.commit(count);
                            if (ec == asio::error::eof) {
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
  if (watch_running_) stream_.cancel();
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
  stream_.expires_after(options_.write_timeout);
  auto [ec, count] = co_await http::async_write(stream_, serializer, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteResponse(const HttpResponse& response, bool keep_alive,
                                                    bool head) {
  http::response<http::empty_body> message(static_cast<http::status>(response.status), 11);
  message.set(http::field::server, kServer);
  message.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive);
  message.content_length(response.body.size());
  std::ostringstream header_text;
  header_text << message.base();
  const std::string header = std::move(header_text).str();
  const std::array<asio::const_buffer, 2> parts = {
      asio::buffer(header), head ? asio::const_buffer() : asio::buffer(response.body)};
  stream_.expires_after(options_.write_timeout);
  // Writes 64 KiB at a time: the kernel copies what one call gives it, which blocks the io thread.
  auto [ec, count] = co_await asio::async_write(stream_, parts, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteStreamHeader(const char* content_type,
                                                        const HttpHeaders& headers, bool chunked) {
  http::response<http::empty_body> message(http::status::ok, 11);
  message.set(http::field::server, kServer);
  message.set(http::field::content_type, content_type);
  message.set(http::field::cache_control, "no-cache");
  for (const auto& [name, value] : headers) message.set(name, value);
  message.chunked(chunked);
  message.keep_alive(chunked);
  http::response_serializer<http::empty_body> serializer(message);
  stream_.expires_after(options_.write_timeout);
  auto [ec, count] = co_await http::async_write_header(stream_, serializer, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteChunk(const std::string& data, bool chunked) {
  if (data.empty()) co_return !gone_;  // an empty chunk would end the body
  // Any write serves as a probe.
  if (input_ended_ && watching_) ScheduleProbe(steady_clock::now() + kProbeInterval);
  stream_.expires_after(options_.write_timeout);
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
  stream_.expires_after(options_.write_timeout);
  const auto last = http::make_chunk_last();
  auto [ec, count] = co_await asio::async_write(stream_, last, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

}  // namespace specfabric::gateway
