#ifndef SPECFABRIC_TRANSPORT_CONTROL_H_
#define SPECFABRIC_TRANSPORT_CONTROL_H_

// The control connection of two fabrics: a plain TCP connection over which they exchange where
// UCX's own connection shall be made and the tokens by which frames will name it. It then stays
// open and silent: its end is how either side learns, within a round trip, that the other closed or
// died, whatever wire UCX has chosen. Being ours, it also answers for the one port that strangers
// reach first: UCX 1.13's own listener makes the process abort on bytes that are not UCX's, so one
// is only opened, on a port of its own, for the moment in which an introduced peer connects.
//
// Non-blocking, single-threaded; private to transport/.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/address.h"

namespace specfabric::transport {

// An owned file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// Cannot be guessed, so that nobody can speak for a connection that is not theirs.
uint64_t RandomToken();

// What one side tells the other. Whoever connected speaks first, so that strangers learn nothing.
struct Introduction {
  uint64_t token = 0;      // to be named in frames to the sender of this
  SocketAddress endpoint;  // where UCX listens for the other; empty from the one who connected
};

// The wire form, of constant size: magic (8 bytes), version (4), family (2: 0, 4 or 6) and port (2)
// of the endpoint, token (8), its IP address (16); little-endian but for the IP address.
std::vector<uint8_t> EncodeIntroduction(const Introduction& introduction);

// Reads one introduction from the front of a growing stream. Nothing: more bytes are needed.
// InvalidArgument as soon as it cannot be one, or when bytes follow it.
absl::StatusOr<std::optional<Introduction>> ParseIntroduction(absl::Span<const uint8_t> stream);

class ControlConnection {
 public:
  // Starts to connect; Advance reports the outcome.
  static absl::StatusOr<ControlConnection> Connect(const SocketAddress& address);
  // Takes over an accepted, non-blocking socket.
  explicit ControlConnection(UniqueFd socket);
  ControlConnection() = default;

  int fd() const { return socket_.get(); }
  // This machine's address on the connection, with port 0.
  SocketAddress LocalHost() const;
  void Introduce(const Introduction& ours);
  // Sends and receives what the socket takes and has: call it whenever the socket became ready. The
  // peer's introduction is returned once. Unavailable: the connection ended or was never made.
  // InvalidArgument: the other side does not speak this protocol.
  absl::StatusOr<std::optional<Introduction>> Advance();
  void Close() { socket_.reset(); }

 private:
  absl::Status Write();
  absl::StatusOr<std::optional<Introduction>> Read();

  UniqueFd socket_;
  std::vector<uint8_t> outgoing_;
  std::vector<uint8_t> incoming_;
  bool introduced_ = false;  // the peer has introduced itself
};

// A listening socket.
class ControlListener {
 public:
  // AlreadyExists: the port is taken. `text` names the address in messages.
  static absl::StatusOr<ControlListener> Listen(const SocketAddress& address,
                                                const std::string& text);
  ControlListener() = default;

  int fd() const { return socket_.get(); }
  bool listening() const { return socket_.valid(); }
  absl::StatusOr<std::string> address() const;
  struct Accepted {
    ControlConnection connection;
    std::string address;
  };
  // The next waiting connection, if any.
  std::optional<Accepted> Accept();
  void Close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_CONTROL_H_
