#ifndef SPECFABRIC_TRANSPORT_HANDSHAKE_H_
#define SPECFABRIC_TRANSPORT_HANDSHAKE_H_

// The messages of two fabrics on their control connection, before UCX is used at all. Each side
// proves that it knows the join secret, without revealing it, by an HMAC over both sides' messages:
//
//   client -> server  Greeting  a nonce
//   server -> client  Greeting  a nonce
//   client -> server  Claim     its token, and its proof
//   server -> client  Answer    its token, where UCX listens for the client, and its proof
//
// The client is the side that connected. The server opens a UCX listener only for a client that
// has proven the secret. In place of its next message either side may send a Refusal, which says
// why it closes. Nonces prevent the replay of a recorded handshake; each side's proof begins with
// its own label, so that one side's proof is never valid as the other's. The secret may be empty.
//
// Every message is of constant size and begins with the same 16 bytes: magic (8), version (4), kind
// (4). All numbers are little-endian, but for IP addresses. The Refusal and these 16 bytes stay as
// they are in later versions, so that versions can tell each other apart.
//
// Pure functions over bytes, except the two that return random numbers. Any thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/address.h"

namespace specfabric::transport {

constexpr uint32_t kHandshakeVersion = 2;

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;  // an HMAC-SHA256

struct Greeting {  // 48 bytes: header, nonce
  Nonce nonce = {};
};

struct Claim {  // 56 bytes: header, token (8), proof (32)
  uint64_t token = 0;
  Proof proof = {};
};

struct Answer {  // 76 bytes: header, token (8), endpoint (20), proof (32)
  uint64_t token = 0;
  SocketAddress endpoint;  // on the wire: family (2: 4 or 6), port (2), IP address (16)
  Proof proof = {};
};

enum class Refusal : uint32_t {  // 40 bytes: header, reason (4), zeros
  kVersion = 1,                  // the other side's version differs
  kSecret = 2,                   // its proof is wrong
  kFull = 3,                     // too many peers already
};

using HandshakeMessage = std::variant<Greeting, Claim, Answer, Refusal>;

std::vector<uint8_t> EncodeHandshake(const HandshakeMessage& message);

// Reads one message from `stream`, all bytes since the last message. Nothing: more bytes are
// needed. FailedPrecondition: a fabric of another version. InvalidArgument, at the first byte that
// shows it: not a message of a fabric, or bytes follow it.
absl::StatusOr<std::optional<HandshakeMessage>> ParseHandshake(absl::Span<const uint8_t> stream);

struct Nonces {
  Nonce client = {};
  Nonce server = {};
};

// HMAC(secret, "specfabric client" | nonces | the client's token).
Proof ClientProof(const std::string& secret, const Nonces& nonces, uint64_t client_token);

// HMAC(secret, "specfabric server" | nonces | the client's token | the server's | the endpoint, as
// on the wire).
Proof ServerProof(const std::string& secret, const Nonces& nonces, uint64_t client_token,
                  uint64_t server_token, const SocketAddress& endpoint);

// In constant time.
bool SameProof(const Proof& a, const Proof& b);

// From the kernel's generator.
Nonce RandomNonce();
// Unpredictable, so that a peer cannot send frames in the name of another's connection.
uint64_t RandomToken();

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_HANDSHAKE_H_
