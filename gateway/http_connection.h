#ifndef SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_
#define SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_

// One client's connection; only http_server.cc and http_connection.cc use it.

#include <functional>
#include <memory>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "gateway/http_server.h"

namespace specfabric::gateway {

// Errors as values: co_await gives (error_code, result...).
constexpr auto kNoThrow = boost::asio::as_tuple(boost::asio::use_awaitable);

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options)
      : stream_(std::move(socket)), watch_ended_(stream_.get_executor()), options_(options) {}

  // Requests one after another until the connection ends.
  boost::asio::awaitable<void> Serve(const HttpServer::Handler& handler,
                                     const HttpServer::Refuse& refuse);
  void Close();

  // While an answer is made, somebody has to read, or a closed connection would go unnoticed. What
  // is read is kept for the next request.
  void StartWatch(std::function<void()> on_gone);
  boost::asio::awaitable<void> StopWatch();
  bool gone() const { return gone_; }

  boost::asio::awaitable<bool> WriteResponse(HttpResponse&& response, bool keep_alive);
  boost::asio::awaitable<bool> WriteStreamHeader(const char* content_type,
                                                 const HttpHeaders& headers, bool chunked);
  boost::asio::awaitable<bool> WriteChunk(const std::string& data, bool chunked);
  boost::asio::awaitable<bool> WriteLastChunk();

 private:
  struct Incoming;  // a request as it is read
  boost::asio::awaitable<bool> Read(Incoming& incoming, const HttpServer::Refuse& refuse);
  boost::asio::awaitable<void> Linger();
  void ReadAhead();
  template <typename Serializer>
  boost::asio::awaitable<bool> Written(Serializer& serializer);

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer watch_ended_;
  const HttpServerOptions& options_;
  std::function<void()> on_gone_;
  bool watching_ = false;       // wanted
  bool watch_running_ = false;  // a read is under way
  bool gone_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_CONNECTION_H_
