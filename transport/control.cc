#include "transport/control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace specfabric::transport {
namespace {

absl::Status RefusedFor(Refusal reason) {
  switch (reason) {
    case Refusal::kSecret:
      return absl::PermissionDeniedError("refused: the join secret differs");
    case Refusal::kFull:
      return absl::ResourceExhaustedError("refused: it has too many peers already");
    case Refusal::kVersion:
      break;
  }
  return absl::InvalidArgumentError("refused: the transport version differs, but says it is ours");
}

absl::Status Lost(int error) {
  return absl::UnavailableError(error == 0 ? "connection closed by the peer"
                                           : std::strerror(error));
}

// Small writes are sent at once; the loss of a machine is noticed within about 23 s.
void Tune(int socket) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 9);  // with fewer, some per cent of lost packets end connections
}

}  // namespace

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

void ControlConnection::Begin(Side side, uint64_t token, const std::string& secret) {
  side_ = side;
  token_ = token;
  secret_ = &secret;
  if (side_ == Side::kServer) {
    nonces_.server = RandomNonce();
  } else {
    nonces_.client = RandomNonce();
    Queue(Greeting{nonces_.client});
  }
}

void ControlConnection::AnswerWith(const SocketAddress& endpoint) {
  const Proof proof = ServerProof(*secret_, nonces_, peers_token_, token_, endpoint);
  Queue(Answer{token_, endpoint, proof});
}

void ControlConnection::Refuse(Refusal reason) {
  Queue(reason);
  (void)Write();
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::Advance() {
  const absl::Status written = Write();
  auto introduction = Read();
  // The peer's last message says more than the fact that it closed.
  if (!written.ok() && (introduction.ok() || absl::IsUnavailable(introduction.status()))) {
    return written;
  }
  return introduction;
}

absl::Status ControlConnection::Write() {
  while (!outgoing_.empty()) {
    const ssize_t sent = send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    // A socket that is still connecting reports EAGAIN too.
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Lost(errno);
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::Read() {
  uint8_t chunk[1024];
  while (true) {
    const ssize_t received = recv(socket_.get(), chunk, sizeof(chunk), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (received <= 0) return Lost(received < 0 ? errno : 0);
    incoming_.insert(incoming_.end(), chunk, chunk + received);
    const auto message = ParseHandshake(incoming_);
    if (absl::IsFailedPrecondition(message.status())) Refuse(Refusal::kVersion);
    if (!message.ok()) return message.status();
    if (!message->has_value()) continue;
    incoming_.clear();
    auto introduction = Handle(**message);
    if (!introduction.ok() || introduction->has_value()) return introduction;
    if (const absl::Status written = Write(); !written.ok()) return written;
  }
}

void ControlConnection::Queue(const HandshakeMessage& message) {
  const std::vector<uint8_t> bytes = EncodeHandshake(message);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::Handle(
    const HandshakeMessage& message) {
  if (const auto* refusal = std::get_if<Refusal>(&message)) return RefusedFor(*refusal);
  if (const auto* claim = std::get_if<Claim>(&message); claim && state_ == State::kClaim) {
    return OnClaim(*claim);
  }
  if (const auto* answer = std::get_if<Answer>(&message); answer && state_ == State::kAnswer) {
    return OnAnswer(*answer);
  }
  const auto* greeting = std::get_if<Greeting>(&message);
  if (greeting == nullptr || state_ != State::kGreeting) {
    return absl::InvalidArgumentError("message out of order from the peer");
  }
  OnGreeting(*greeting);
  return std::nullopt;
}

void ControlConnection::OnGreeting(const Greeting& greeting) {
  if (side_ == Side::kServer) {
    nonces_.client = greeting.nonce;
    state_ = State::kClaim;
    return Queue(Greeting{nonces_.server});
  }
  nonces_.server = greeting.nonce;
  state_ = State::kAnswer;
  Queue(Claim{token_, ClientProof(*secret_, nonces_, token_)});
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::OnClaim(const Claim& claim) {
  if (!SameProof(claim.proof, ClientProof(*secret_, nonces_, claim.token))) return RefuseSecret();
  peers_token_ = claim.token;
  state_ = State::kDone;
  return Introduction{claim.token, {}};
}

absl::StatusOr<std::optional<Introduction>> ControlConnection::OnAnswer(const Answer& answer) {
  const Proof expected = ServerProof(*secret_, nonces_, token_, answer.token, answer.endpoint);
  if (!SameProof(answer.proof, expected)) return RefuseSecret();
  state_ = State::kDone;
  return Introduction{answer.token, answer.endpoint};
}

absl::Status ControlConnection::RefuseSecret() {
  Refuse(Refusal::kSecret);
  return absl::UnauthenticatedError("its join secret differs");
}

absl::StatusOr<std::optional<ControlListener::Accepted>> ControlListener::Accept() {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  UniqueFd socket(
      accept4(fd(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) {
    // The only errors of accept4 that trying again at once cannot end.
    const bool exhausted =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (exhausted) return absl::ResourceExhaustedError(std::strerror(errno));
    return std::nullopt;
  }
  pollfd events = {socket.get(), POLLRDHUP, 0};
  const bool gone = poll(&events, 1, 0) > 0;
  return Accepted{ControlConnection(std::move(socket)), FormatAddress(peer), gone};
}

}  // namespace specfabric::transport
