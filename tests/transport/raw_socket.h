#ifndef SPECFABRIC_TESTS_TRANSPORT_RAW_SOCKET_H_
#define SPECFABRIC_TESTS_TRANSPORT_RAW_SOCKET_H_

// Plain TCP sockets, for peers that do not use UCX.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace specfabric::transport {

// Listens on a port of TestHost, accepts connections in the kernel's backlog and never answers.
class SilentServer {
 public:
  SilentServer();
  ~SilentServer();
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;
  const std::string& address() const { return address_; }
  // The descriptor of the next connection, which the caller closes. Blocking.
  int Accept() const;

 private:
  int socket_;
  std::string address_;
};

// A connection to a port of TestHost, or one that was accepted.
class RawConnection {
 public:
  explicit RawConnection(uint16_t port);
  struct Accepted {
    int fd;
  };
  explicit RawConnection(Accepted accepted) : socket_(accepted.fd) {}
  RawConnection(RawConnection&& other) noexcept : socket_(other.socket_) { other.socket_ = -1; }
  ~RawConnection();

  void Send(const std::vector<uint8_t>& bytes) const;
  // Fewer bytes than asked for: the other side has closed, or nothing came for 10 s.
  std::vector<uint8_t> Receive(size_t bytes) const;
  // The next bytes, at most 64 KiB. Nothing: the other side has closed, or nothing came for 10 s.
  std::vector<uint8_t> ReceiveSome() const;
  // All bytes until the other side closes. Nothing: it did not close within 10 s.
  std::optional<std::vector<uint8_t>> ReceiveToEnd() const;

 private:
  int socket_;
};

// Of "host:port".
uint16_t PortOf(const std::string& address);

// The TCP ports that this process listens on.
std::vector<uint16_t> OwnListeningPorts();

// Connects to a port of TestHost, sends as much as the other side accepts, and closes.
void SendRaw(uint16_t port, const std::vector<uint8_t>& bytes);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_RAW_SOCKET_H_
