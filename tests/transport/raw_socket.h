#ifndef SPECFABRIC_TESTS_TRANSPORT_RAW_SOCKET_H_
#define SPECFABRIC_TESTS_TRANSPORT_RAW_SOCKET_H_

// Plain TCP sockets that play peers who do not speak UCX.

#include <cstdint>
#include <string>
#include <vector>

namespace specfabric::transport {

// Listens on a loopback port, accepts connections in the kernel's backlog and never answers.
class SilentServer {
 public:
  SilentServer();
  ~SilentServer();
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;
  const std::string& address() const { return address_; }

 private:
  int socket_;
  std::string address_;
};

// The TCP ports that this process listens on.
std::vector<uint16_t> OwnListeningPorts();

// Connects to a loopback port, sends what the other side takes, and closes.
void SendRaw(uint16_t port, const std::vector<uint8_t>& bytes);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_RAW_SOCKET_H_
