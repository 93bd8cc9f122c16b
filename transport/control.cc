#include "transport/control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {
namespace {

constexpr uint64_t kMagic = 0x3142464345505324;  // "$SPECFB1" in memory
constexpr uint32_t kVersion = 1;

struct Wire {
  uint64_t magic;
  uint32_t version;
  uint16_t family;
  uint16_t port;
  uint64_t token;
  uint8_t ip[16];
};
static_assert(sizeof(Wire) == 40);
static_assert(std::endian::native == std::endian::little);

absl::Status Lost(int error) {
  return absl::UnavailableError(error == 0 ? "connection closed by the peer"
                                           : std::strerror(error));
}

// Small writes leave at once; a machine that vanishes is noticed within about 11 s.
void Tune(int socket) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

UniqueFd::~UniqueFd() { reset(); }

void UniqueFd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

uint64_t RandomToken() {
  uint64_t token = 0;
  // Eight bytes are never cut short, and only an old kernel's early boot could fail.
  if (getrandom(&token, sizeof(token), 0) != sizeof(token)) std::abort();
  return token;
}

std::vector<uint8_t> EncodeIntroduction(const Introduction& introduction) {
  Wire wire = {kMagic, kVersion, 0, 0, introduction.token, {}};
  if (introduction.endpoint.storage.ss_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, &introduction.endpoint.storage, sizeof(address));
    wire.family = 4;
    wire.port = ntohs(address.sin_port);
    std::memcpy(wire.ip, &address.sin_addr, sizeof(address.sin_addr));
  } else if (introduction.endpoint.storage.ss_family == AF_INET6) {
    sockaddr_in6 address;
    std::memcpy(&address, &introduction.endpoint.storage, sizeof(address));
    wire.family = 6;
    wire.port = ntohs(address.sin6_port);
    std::memcpy(wire.ip, &address.sin6_addr, sizeof(address.sin6_addr));
  }
  std::vector<uint8_t> bytes(sizeof(wire));
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

absl::StatusOr<std::optional<Introduction>> ParseIntroduction(absl::Span<const uint8_t> stream) {
  Wire wire = {};
  std::memcpy(&wire, stream.data(), std::min(stream.size(), sizeof(wire)));
  if (std::memcmp(&wire.magic, &kMagic, std::min(stream.size(), sizeof(kMagic))) != 0) {
    return absl::InvalidArgumentError("not a SpecFabric peer");
  }
  if (stream.size() < sizeof(wire)) return std::nullopt;
  if (stream.size() > sizeof(wire)) {
    return absl::InvalidArgumentError("unexpected bytes from the peer");
  }
  if (wire.version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport version ", wire.version, ", must be ", kVersion));
  }
  Introduction introduction;
  introduction.token = wire.token;
  if (wire.family == 4) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(wire.port);
    std::memcpy(&address.sin_addr, wire.ip, sizeof(address.sin_addr));
    std::memcpy(&introduction.endpoint.storage, &address, sizeof(address));
    introduction.endpoint.size = sizeof(address);
  } else if (wire.family == 6) {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(wire.port);
    std::memcpy(&address.sin6_addr, wire.ip, sizeof(address.sin6_addr));
    std::memcpy(&introduction.endpoint.storage, &address, sizeof(address));
    introduction.endpoint.size = sizeof(address);
  } else if (wire.family != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address family ", wire.family, ", must be 0, 4 or 6"));
  }
  return introduction;
}

SocketAddress ControlConnection::LocalHost() const {
  SocketAddress local;
  local.size = sizeof(local.storage);
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&local.storage), &local.size);
  if (local.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&local.storage)->sin_port = 0;
  } else {
    reinterpret_cast<sockaddr_in6*>(&local.storage)->sin6_port = 0;
  }
  return local;
}

ControlConnection::ControlConnection(UniqueFd socket) : socket_(std::move(socket)) {
  Tune(socket_.get());
}

absl::StatusOr<ControlConnection> ControlConnection::Connect(const SocketAddress& address) {
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Lost(errno);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) !=
          0 &&
      errno != EINPROGRESS) {
    return Lost(errno);
  }
  return ControlConnection(std::move(socket));
}

void ControlConnection::Introduce(const Introduction& ours) {
  const std::vector<uint8_t> bytes = EncodeIntroduction(ours);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::Advance() {
  const absl::Status written = Write();
  if (!written.ok()) return written;
  return Read();
}

absl::Status ControlConnection::Write() {
  while (!outgoing_.empty()) {
    const ssize_t sent = send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    // Still connecting is EAGAIN as well.
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Lost(errno);
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::Read() {
  uint8_t chunk[4096];
  while (true) {
    const ssize_t received = recv(socket_.get(), chunk, sizeof(chunk), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (received <= 0) return Lost(received < 0 ? errno : 0);
    if (introduced_) return absl::InvalidArgumentError("unexpected bytes from the peer");
    incoming_.insert(incoming_.end(), chunk, chunk + received);
    auto introduction = ParseIntroduction(incoming_);
    if (!introduction.ok()) return introduction.status();
    if (introduction->has_value()) {
      introduced_ = true;
      incoming_.clear();
      return introduction;
    }
  }
}

absl::StatusOr<ControlListener> ControlListener::Listen(const SocketAddress& address,
                                                        const std::string& text) {
  const auto failed = [&text](int error) {
    const std::string message = absl::StrCat("cannot listen on ", text, ": ", std::strerror(error));
    if (error == EADDRINUSE) return absl::AlreadyExistsError(message);
    if (error == EACCES) return absl::PermissionDeniedError(message);
    return absl::UnavailableError(message);
  };
  ControlListener listener;
  listener.socket_ =
      UniqueFd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.socket_.valid()) return failed(errno);
  // A restarted process may take its old port at once.
  const int reuse = 1;
  setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return failed(errno);
  }
  return listener;
}

absl::StatusOr<std::string> ControlListener::address() const {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return Lost(errno);
  return FormatAddress(bound);
}

std::optional<ControlListener::Accepted> ControlListener::Accept() {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  UniqueFd socket(
      accept4(fd(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) return std::nullopt;
  return Accepted{ControlConnection(std::move(socket)), FormatAddress(peer)};
}

}  // namespace specfabric::transport
