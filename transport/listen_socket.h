#ifndef SPECFABRIC_TRANSPORT_LISTEN_SOCKET_H_
#define SPECFABRIC_TRANSPORT_LISTEN_SOCKET_H_

// A TCP port that a process listens on before its server exists: a process takes its ports before
// it loads a model, so that one in use is reported at once and no other process takes it meanwhile.
// Connections wait in the socket's queue until the server accepts them.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/unique_fd.h"

namespace specfabric::transport {

class ListenSocket {
 public:
  // Listens on "host:port" (port 0: any free one). The error is one line that names the address.
  // InvalidArgument and NotFound: as ResolveAddress. AlreadyExists: the port is taken.
  // PermissionDenied: the port is not for this user. Unavailable: not an address of this machine.
  static absl::StatusOr<ListenSocket> Open(const std::string& address);
  // As Open, but only binds: connections are refused, and another process that allows it may bind
  // there too, though not listen first.
  static absl::StatusOr<ListenSocket> Reserve(const std::string& address);

  int fd() const { return socket_.get(); }
  int family() const { return family_; }                   // AF_INET or AF_INET6
  const std::string& address() const { return address_; }  // as bound
  // From now on as many connections may wait as the system allows, instead of a few: a server
  // accepts them.
  void WidenQueue();
  int Release() { return socket_.Release(); }  // the descriptor is the caller's

 private:
  static absl::StatusOr<ListenSocket> Bind(const std::string& text, bool listening);

  UniqueFd socket_;
  int family_ = 0;
  std::string address_;
};

// For options, which are copied: the server that is started with them moves the socket out.
using SharedListenSocket = std::shared_ptr<ListenSocket>;

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_LISTEN_SOCKET_H_
