#include "transport/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace specfabric::transport {
namespace {

struct HostPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostPort> Split(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort result;
  if (colon != std::string::npos) {
    result.host = text.substr(0, colon);
    result.port = text.substr(colon + 1);
    if (result.host.size() >= 2 && result.host.front() == '[' && result.host.back() == ']') {
      result.host = result.host.substr(1, result.host.size() - 2);
    } else if (result.host.find(':') != std::string::npos) {
      result.host.clear();  // IPv6 without brackets: where the port begins is ambiguous
    }
  }
  uint32_t port = 0;
  const bool digits = result.port.find_first_not_of("0123456789") == std::string::npos;
  if (result.host.empty() || !digits || !absl::SimpleAtoi(result.port, &port) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address '", text, "': must be host:port or [IPv6 host]:port, port in [0, 65535]"));
  }
  return result;
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<AddressList> LookUp(const std::string& text) {
  const auto parts = Split(text);
  if (!parts.ok()) return parts.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (error == 0) return AddressList(found, freeaddrinfo);
  const std::string why =
      absl::StrCat("address '", text, "': host lookup failed: ", gai_strerror(error));
  const bool has_none = error == EAI_NONAME || error == EAI_NODATA;
  return has_none ? absl::NotFoundError(why) : absl::UnavailableError(why);
}

SocketAddress ToSocketAddress(const addrinfo& entry) {
  SocketAddress result;
  std::memcpy(&result.storage, entry.ai_addr, entry.ai_addrlen);
  result.size = entry.ai_addrlen;
  return result;
}

}  // namespace

absl::Status CheckAddress(const std::string& text) { return Split(text).status(); }

absl::StatusOr<SocketAddress> ResolveAddress(const std::string& text) {
  const auto found = LookUp(text);
  if (!found.ok()) return found.status();
  const addrinfo* chosen = found->get();
  for (const addrinfo* entry = found->get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) {
      chosen = entry;
      break;
    }
  }
  return ToSocketAddress(*chosen);
}

absl::StatusOr<std::vector<std::string>> ResolveAll(const std::string& text) {
  const auto found = LookUp(text);
  if (!found.ok()) return found.status();
  std::set<std::string> addresses;
  for (const addrinfo* entry = found->get(); entry != nullptr; entry = entry->ai_next) {
    addresses.insert(FormatAddress(ToSocketAddress(*entry).storage));
  }
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

std::string FormatAddress(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, &address, sizeof(ipv4));
    inet_ntop(AF_INET, &ipv4.sin_addr, host, sizeof(host));
    return absl::StrCat(host, ":", ntohs(ipv4.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, &address, sizeof(ipv6));
    inet_ntop(AF_INET6, &ipv6.sin6_addr, host, sizeof(host));
    return absl::StrCat("[", host, "]:", ntohs(ipv6.sin6_port));
  }
  return "unknown";
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, &address, sizeof(ipv4));
    return ntohl(ipv4.sin_addr.s_addr) >> 24 == 127;
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, &address, sizeof(ipv6));
    return IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
  }
  return false;
}

}  // namespace specfabric::transport
