// The lower bound of everything that uses the kernel's network stack: one TCP connection, nothing
// on top. Messages have a fixed length that both sides know, so there is no framing.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/transport/measure.h"

namespace specfabric::bench {
namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<sockaddr_in> ParseAddress(const std::string& text) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address ", text, "; allowed: IPv4:PORT"));
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

absl::Status SetOption(const Socket& socket, int level, int option) {
  const int on = 1;
  if (setsockopt(socket.fd(), level, option, &on, sizeof on) == 0) return absl::OkStatus();
  return ErrnoError("cannot set a socket option");
}

absl::StatusOr<Socket> Accept(const Settings& settings) {
  absl::StatusOr<sockaddr_in> address = ParseAddress(settings.address);
  if (!address.ok()) return address.status();
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.fd() < 0) return ErrnoError("cannot make a socket");
  if (absl::Status status = SetOption(listener, SOL_SOCKET, SO_REUSEADDR); !status.ok()) {
    return status;
  }
  if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0 ||
      listen(listener.fd(), 1) != 0) {
    return ErrnoError(absl::StrCat("cannot listen at ", settings.address));
  }
  Socket accepted(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (accepted.fd() < 0) return ErrnoError("cannot accept");
  return accepted;
}

absl::StatusOr<Socket> Connect(const Settings& settings) {
  absl::StatusOr<sockaddr_in> address = ParseAddress(settings.address);
  if (!address.ok()) return address.status();
  Socket connected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connected.fd() < 0) return ErrnoError("cannot make a socket");
  if (connect(connected.fd(), reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0) {
    return ErrnoError(absl::StrCat("cannot connect to ", settings.address));
  }
  return connected;
}

absl::Status SendAll(const Socket& socket, const std::vector<char>& message) {
  size_t sent = 0;
  while (sent < message.size()) {
    const ssize_t n = send(socket.fd(), message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return ErrnoError("cannot send");
    if (n > 0) sent += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// Fills `message`. False where the other side closed instead of sending another.
absl::StatusOr<bool> ReceiveAll(const Socket& socket, bool poll, std::vector<char>& message) {
  const int flags = poll ? MSG_DONTWAIT : MSG_WAITALL;
  size_t received = 0;
  while (received < message.size()) {
    const ssize_t n =
        recv(socket.fd(), message.data() + received, message.size() - received, flags);
    if (n == 0) {
      if (received == 0) return false;
      return absl::DataLossError("the connection was closed within a message");
    }
    if (n > 0) {
      received += static_cast<size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      return ErrnoError("cannot receive");
    }
  }
  return true;
}

absl::Status Serve(const Settings& settings) {
  const absl::StatusOr<Socket> socket = Accept(settings);
  if (!socket.ok()) return socket.status();
  if (absl::Status status = SetOption(*socket, IPPROTO_TCP, TCP_NODELAY); !status.ok()) {
    return status;
  }
  std::vector<char> message(settings.bytes);
  while (true) {
    const absl::StatusOr<bool> more = ReceiveAll(*socket, settings.poll, message);
    if (!more.ok()) return more.status();
    if (!*more) return absl::OkStatus();
    if (absl::Status status = SendAll(*socket, message); !status.ok()) return status;
  }
}

absl::StatusOr<Latency> MeasureClient(const Settings& settings) {
  const absl::StatusOr<Socket> socket = Connect(settings);
  if (!socket.ok()) return socket.status();
  if (absl::Status status = SetOption(*socket, IPPROTO_TCP, TCP_NODELAY); !status.ok()) {
    return status;
  }
  const std::vector<char> request(settings.bytes, 'x');
  std::vector<char> reply(settings.bytes);
  absl::StatusOr<Latency> latency = Measure(settings, [&]() -> absl::Status {
    if (absl::Status status = SendAll(*socket, request); !status.ok()) return status;
    const absl::StatusOr<bool> received = ReceiveAll(*socket, settings.poll, reply);
    if (!received.ok()) return received.status();
    return *received ? absl::OkStatus() : absl::UnavailableError("the server has gone");
  });
  if (latency.ok() && reply != request) return absl::DataLossError("the echo differs");
  return latency;
}

}  // namespace
}  // namespace specfabric::bench

int main(int argc, char** argv) {
  return specfabric::bench::PeerMain(
      argc, argv,
      specfabric::bench::Peer{.name = "tcp_bench",
                              .tests = {"echo"},
                              .address_form = "IPv4:PORT",
                              .serve = specfabric::bench::Serve,
                              .measure = specfabric::bench::MeasureClient});
}
