#ifndef SPECFABRIC_TRANSPORT_CONTROL_H_
#define SPECFABRIC_TRANSPORT_CONTROL_H_

// The control connection of two fabrics: a plain TCP connection over which they prove the join
// secret to each other, and exchange the address of UCX's connection and the tokens that name it in
// frames (handshake.h). It then stays open and silent: whatever wire UCX has chosen, either side
// learns from its end, within a round trip, that the other closed or died.
//
// Unauthenticated peers reach only this port. UCX 1.13's own listener aborts the process on bytes
// that are not UCX's, so one is opened, on another port, only while a peer that has proven the
// secret connects.
//
// Non-blocking, single-threaded; private to transport/.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/listen_socket.h"
#include "transport/unique_fd.h"

namespace specfabric::transport {

// What the other side has sent once it has proven the join secret.
struct Introduction {
  uint64_t token = 0;      // for frames to the sender of this
  SocketAddress endpoint;  // where UCX listens for the other; empty from the client
};

class ControlConnection {
 public:
  // Starts to connect; Advance reports the outcome.
  static absl::StatusOr<ControlConnection> Connect(const SocketAddress& address);
  // Takes over an accepted, non-blocking socket.
  explicit ControlConnection(UniqueFd socket);
  ControlConnection() = default;

  enum class Side { kClient, kServer };  // the client is the side that connected

  int fd() const { return socket_.get(); }
  // This machine's address on the connection, with port 0.
  SocketAddress LocalHost() const;
  // Before the first Advance. `token` is ours; `secret` outlives the connection.
  void Begin(Side side, uint64_t token, const std::string& secret);
  // Sends and receives what the socket takes and has: call it whenever the socket became ready. The
  // peer's introduction is returned once, when the peer has proven the secret.
  // Unavailable: the connection ended or was never made. Unauthenticated: the peer did not prove
  // the secret, and was told so. PermissionDenied: our proof was wrong, says the peer.
  // ResourceExhausted: it has too many peers. FailedPrecondition: its version differs, and it was
  // told so. InvalidArgument: it does not speak this protocol.
  absl::StatusOr<std::optional<Introduction>> Advance();
  // On the server's side, after the introduction: tells the client where UCX listens for it.
  // Advance sends it.
  void AnswerWith(const SocketAddress& endpoint);
  // Tells the peer why it will be closed, if the socket takes the message at once.
  void Refuse(Refusal reason);
  // The peer has proven the secret.
  bool proven() const { return state_ == State::kDone; }
  void Close() { socket_.reset(); }

 private:
  // The message that must come next.
  enum class State { kGreeting, kClaim, kAnswer, kDone };

  absl::Status Write();
  absl::StatusOr<std::optional<Introduction>> Read();
  void Queue(const HandshakeMessage& message);
  absl::StatusOr<std::optional<Introduction>> Handle(const HandshakeMessage& message);
  void OnGreeting(const Greeting& greeting);
  absl::StatusOr<std::optional<Introduction>> OnClaim(const Claim& claim);
  absl::StatusOr<std::optional<Introduction>> OnAnswer(const Answer& answer);
  absl::Status RefuseSecret();

  UniqueFd socket_;
  std::vector<uint8_t> outgoing_;
  std::vector<uint8_t> incoming_;
  Side side_ = Side::kClient;
  State state_ = State::kGreeting;
  const std::string* secret_ = nullptr;
  Nonces nonces_;
  uint64_t token_ = 0;
  uint64_t peers_token_ = 0;
};

// Accepts what connects to a listening socket.
class ControlListener {
 public:
  ControlListener() = default;
  explicit ControlListener(ListenSocket socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.fd(); }
  bool listening() const { return socket_.fd() >= 0; }
  const std::string& address() const { return socket_.address(); }
  struct Accepted {
    ControlConnection connection;
    std::string address;
    bool gone = false;  // the peer has closed it already
  };
  // The next waiting connection, if any. ResourceExhausted: there is one, but no descriptor or
  // memory for it.
  absl::StatusOr<std::optional<Accepted>> Accept();
  void Close() { socket_ = {}; }

 private:
  ListenSocket socket_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_CONTROL_H_
