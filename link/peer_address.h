#ifndef SPECFABRIC_LINK_PEER_ADDRESS_H_
#define SPECFABRIC_LINK_PEER_ADDRESS_H_

// Addresses of peers on a command line: "host:port" is one peer, whatever its name resolves to;
// "dns:///host:port" is one peer for each address of the name, which change with time (Kubernetes'
// headless services).

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace specfabric::link {

// The "host:port" of "dns:///host:port"; nothing for any other text.
std::optional<std::string> NameOf(const std::string& address);

// InvalidArgument, in one line: not one of the two forms. Looks nothing up.
absl::Status CheckPeerAddress(const std::string& address);

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_PEER_ADDRESS_H_
