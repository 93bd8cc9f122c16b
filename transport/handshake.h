#ifndef SPECFABRIC_TRANSPORT_HANDSHAKE_H_
#define SPECFABRIC_TRANSPORT_HANDSHAKE_H_

// What two fabrics say to each other on their control connection before UCX is used at all. Each
// proves that it knows the join secret, without telling it, by an HMAC over what both have said:
//
//   client -> server  Greeting  a nonce
//   server -> client  Greeting  a nonce
//   client -> server  Claim     its token, and its proof
//   server -> client  Answer    its token, where UCX listens for the client, and its proof
//
// The client is whoever connected. Neither side learns anything of the other's before its own turn
// to have proven the secret: the server listens with UCX only for who has. In place of its next
// message either side may send a Refusal, which says why it closes. Nonces keep a recorded
// conversation from being played again; each side's proof begins with a label of its own, so that
// one side's can never serve as the other's. The secret may be empty.
//
// Every message is of constant size and begins with the same 16 bytes: magic (8), version (4), kind
// (4). All numbers are little-endian, but for IP addresses. The Refusal and these 16 bytes stay as
// they are in later versions, so that versions can tell each other apart.
//
// Pure functions over bytes, but for the two that make random numbers. Any thread.

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
  kVersion = 1,                  // the other side's version is another
  kSecret = 2,                   // its proof does not hold
  kFull = 3,                     // no place for another peer
};

using HandshakeMessage = std::variant<Greeting, Claim, Answer, Refusal>;

std::vector<uint8_t> EncodeHandshake(const HandshakeMessage& message);

// Reads one message from `stream`, all that came since the last. Nothing: more bytes are needed.
// FailedPrecondition: a fabric of another version. InvalidArgument, as soon as it is certain: no
// fabric's message, or bytes follow it.
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

// Takes the same time wherever they differ.
bool SameProof(const Proof& a, const Proof& b);

// From the kernel's generator.
Nonce RandomNonce();
// Cannot be guessed, so that nobody can speak for a connection that is not theirs.
uint64_t RandomToken();

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_HANDSHAKE_H_
