#ifndef SPECFABRIC_GATEWAY_HTTP_STREAM_H_
#define SPECFABRIC_GATEWAY_HTTP_STREAM_H_

// The bytes of one client's connection: TCP, or TLS over it. What Boost.Beast reads and writes
// goes through here; timeouts, cancellation and the socket's end are TCP's in both cases.

#include <memory>
#include <optional>
#include <utility>

#include "boost/asio/async_result.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/beast/core/tcp_stream.hpp"

namespace specfabric::gateway {

class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using Tls = boost::asio::ssl::stream<boost::beast::tcp_stream&>;

  // `tls`: null for none. The object may not move.
  HttpStream(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls)
      : tcp_(std::move(socket)), context_(std::move(tls)) {
    if (context_ != nullptr) tls_.emplace(tcp_, *context_);
  }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  bool has_tls() const { return tls_.has_value(); }
  Tls& tls() { return *tls_; }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const Buffers& to) {
          if (tls_) {
            tls_->async_read_some(to, std::move(handler));
          } else {
            tcp_.async_read_some(to, std::move(handler));
          }
        },
        token, buffers);
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const Buffers& from) {
          if (tls_) {
            tls_->async_write_some(from, std::move(handler));
          } else {
            tcp_.async_write_some(from, std::move(handler));
          }
        },
        token, buffers);
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::shared_ptr<boost::asio::ssl::context>
      context_;  // the connection's, whatever is loaded since
  std::optional<Tls> tls_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_STREAM_H_
