#include "transport/listen_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/address.h"

namespace specfabric::transport {
namespace {

// How many connections may wait for a server that is still loading. Peers retry, and the attempts
// that they have given up stay in the queue.
constexpr int kLoadingQueue = 64;

absl::Status Failed(const std::string& address, int error) {
  const std::string message =
      absl::StrCat("cannot listen on ", address, ": ", std::strerror(error));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(message);
  if (error == EACCES) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<ListenSocket> ListenSocket::Bind(const std::string& text, bool listening) {
  const auto address = ResolveAddress(text);
  if (!address.ok()) return address.status();
  ListenSocket result;
  result.family_ = address->storage.ss_family;
  result.socket_ = UniqueFd(socket(result.family_, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!result.socket_.valid()) return Failed(text, errno);
  // Lets a restarted process take its old port at once.
  const int reuse = 1;
  setsockopt(result.fd(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (bind(result.fd(), reinterpret_cast<const sockaddr*>(&address->storage), address->size) != 0 ||
      (listening && listen(result.fd(), kLoadingQueue) != 0)) {
    return Failed(text, errno);
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(result.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return Failed(text, errno);
  }
  result.address_ = FormatAddress(bound);
  return result;
}

absl::StatusOr<ListenSocket> ListenSocket::Open(const std::string& address) {
  return Bind(address, /*listening=*/true);
}

absl::StatusOr<ListenSocket> ListenSocket::Reserve(const std::string& address) {
  return Bind(address, /*listening=*/false);
}

void ListenSocket::WidenQueue() {
  // On a socket that listens already, this only changes the length of the queue.
  (void)listen(fd(), SOMAXCONN);
}

}  // namespace specfabric::transport
