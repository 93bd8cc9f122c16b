#include "gateway/http_connection.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "boost/asio/write.hpp"
#include "boost/beast/http.hpp"

namespace specfabric::gateway {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr const char* kServer = "specfabric";
// Bytes of further requests that are taken in while an answer is made; past it nobody reads, and a
// client that goes away is noticed when something is sent to it.
constexpr size_t kMaxReadAhead = 64 << 10;
// How long a refused client may go on sending what nobody reads. Closing at once would reset the
// connection, and the client would never see why.
constexpr std::chrono::seconds kLinger{5};

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
  return {.message = "the request is not HTTP: " + ec.message()};
}

}  // namespace

struct HttpConnection::Incoming {
  http::request_parser<http::string_body> parser;
};

asio::awaitable<void> HttpConnection::Serve(const HttpServer::Handler& handler,
                                            const HttpServer::Refuse& refuse) {
  for (bool open = true; open;) {
    Incoming incoming;
    if (!co_await Read(incoming, refuse)) break;
    auto& message = incoming.parser.get();
    HttpRequest request;
    request.method = std::string(message.method_string());
    const std::string target(message.target());
    request.path = target.substr(0, target.find('?'));
    request.authorization = std::string(message[http::field::authorization]);
    request.traceparent = std::string(message["traceparent"]);
    request.body = std::move(message.body());
    HttpExchange exchange(this, std::move(request), message.keep_alive(), message.version() >= 11);
    stream_.expires_never();
    co_await handler(exchange);
    co_await StopWatch();
    open = !gone_ && exchange.answered() && exchange.keep_alive();
  }
  error_code ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

// False: there is no request; what could be said about it has been.
asio::awaitable<bool> HttpConnection::Read(Incoming& incoming, const HttpServer::Refuse& refuse) {
  auto& parser = incoming.parser;
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  stream_.expires_after(options_.idle_timeout);
  auto [header_ec, header_bytes] =
      co_await http::async_read_header(stream_, buffer_, parser, kNoThrow);
  if (header_ec == http::error::end_of_stream || header_ec == beast::error::timeout) {
    co_return false;
  }
  error_code ec = header_ec;
  if (!ec && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> proceed(http::status::continue_, parser.get().version());
    http::response_serializer<http::empty_body> serializer(proceed);
    if (!co_await Written(serializer)) co_return false;
  }
  if (!ec) {
    stream_.expires_after(options_.body_timeout);
    auto [body_ec, body_bytes] = co_await http::async_read(stream_, buffer_, parser, kNoThrow);
    ec = body_ec;
  }
  if (!ec) co_return true;
  const bool ours = ec.category() == http::make_error_code(http::error::bad_target).category();
  // Otherwise the client is gone, or too slow and cut off.
  if (ours && ec != http::error::partial_message) {
    HttpResponse response = refuse(Unreadable(ec, options_));
    if (co_await WriteResponse(std::move(response), /*keep_alive=*/false)) co_await Linger();
  }
  co_return false;
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

void HttpConnection::StartWatch(std::function<void()> on_gone) {
  on_gone_ = std::move(on_gone);
  watching_ = true;
  watch_ended_.expires_at(asio::steady_timer::time_point::max());
  // Begins to read before anything is written: a time limit for a write would otherwise be one for
  // the read as well.
  ReadAhead();
}

void HttpConnection::ReadAhead() {
  watch_running_ = watching_ && buffer_.size() < kMaxReadAhead;
  if (!watch_running_) {
    watch_ended_.cancel();
    return;
  }
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](const error_code& ec, size_t count) {
                            self->buffer_.commit(count);
                            if (ec && std::exchange(self->watching_, false)) {
                              self->gone_ = true;
                              self->on_gone_();
                            }
                            self->ReadAhead();
                          });
}

asio::awaitable<void> HttpConnection::StopWatch() {
  watching_ = false;
  if (watch_running_) stream_.cancel();
  while (watch_running_) co_await watch_ended_.async_wait(kNoThrow);
  on_gone_ = nullptr;
}

template <typename Serializer>
asio::awaitable<bool> HttpConnection::Written(Serializer& serializer) {
  stream_.expires_after(options_.write_timeout);
  auto [ec, count] = co_await http::async_write(stream_, serializer, kNoThrow);
  if (ec) gone_ = true;
  co_return !ec;
}

asio::awaitable<bool> HttpConnection::WriteResponse(HttpResponse&& response, bool keep_alive) {
  http::response<http::string_body> message(static_cast<http::status>(response.status), 11);
  message.set(http::field::server, kServer);
  message.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive);
  message.body() = std::move(response.body);
  message.prepare_payload();
  http::response_serializer<http::string_body> serializer(message);
  co_return co_await Written(serializer);
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
