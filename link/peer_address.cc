#include "link/peer_address.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/address.h"

namespace specfabric::link {
namespace {

constexpr absl::string_view kScheme = "dns:///";

}  // namespace

std::optional<std::string> NameOf(const std::string& address) {
  if (!absl::StartsWith(address, kScheme)) return std::nullopt;
  return address.substr(kScheme.size());
}

absl::Status CheckPeerAddress(const std::string& address) {
  const std::string host_port = NameOf(address).value_or(address);
  const bool slash = host_port.find('/') != std::string::npos;
  if (!slash && transport::CheckAddress(host_port).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", address, "': allowed are host:port and dns:///host:port, port from 0 to 65535"));
}

}  // namespace specfabric::link
