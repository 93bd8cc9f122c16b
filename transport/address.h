#ifndef SPECFABRIC_TRANSPORT_ADDRESS_H_
#define SPECFABRIC_TRANSPORT_ADDRESS_H_

// "host:port" to a socket address and back. IPv6 hosts are written in brackets: "[::1]:7000".

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace specfabric::transport {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

// InvalidArgument, in one line: not "host:port". Looks nothing up.
absl::Status CheckAddress(const std::string& text);

// Names are looked up on the calling thread, which takes as long as the resolver does; numeric
// hosts never leave the process. Of several results the first IPv4 one is taken, else the first.
// InvalidArgument: not "host:port". NotFound: the name has no address. Unavailable: the
// resolver did not answer.
absl::StatusOr<SocketAddress> ResolveAddress(const std::string& text);

// Every address of a name, IPv4 and IPv6, in numeric form with the port, sorted, each once. Looked
// up, and failing, as ResolveAddress.
absl::StatusOr<std::vector<std::string>> ResolveAll(const std::string& text);

// The numeric form; "unknown" for a family that is neither IPv4 nor IPv6.
std::string FormatAddress(const sockaddr_storage& address);

// An address that only this machine can reach.
bool IsLoopback(const sockaddr_storage& address);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ADDRESS_H_
