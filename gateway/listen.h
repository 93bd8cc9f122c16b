#ifndef SPECFABRIC_GATEWAY_LISTEN_H_
#define SPECFABRIC_GATEWAY_LISTEN_H_

#include <sys/socket.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/ip/tcp.hpp"
#include "transport/listen_socket.h"

namespace specfabric::gateway {

// Passes a listening socket to an Asio acceptor.
inline absl::Status Listen(transport::ListenSocket socket,
                           boost::asio::ip::tcp::acceptor& acceptor) {
  using boost::asio::ip::tcp;
  socket.WidenQueue();
  boost::system::error_code error;
  acceptor.assign(socket.family() == AF_INET6 ? tcp::v6() : tcp::v4(), socket.Release(), error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", socket.address(), ": ", error.message()));
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_LISTEN_H_
