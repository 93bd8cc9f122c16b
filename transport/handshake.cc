#include "transport/handshake.h"

#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace specfabric::transport {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kMagic = 0x3142464345505324;  // "$SPECFB1" in memory
constexpr absl::string_view kClientLabel = "specfabric client";
constexpr absl::string_view kServerLabel = "specfabric server";

enum class Kind : uint32_t { kGreeting = 1, kClaim = 2, kAnswer = 3, kRefusal = 4 };

// The wire forms. Packed, so that no padding goes out.
struct [[gnu::packed]] HeaderWire {
  uint64_t magic;
  uint32_t version;
  Kind kind;
};
struct [[gnu::packed]] GreetingWire {
  HeaderWire header;
  Nonce nonce;
};
struct [[gnu::packed]] ClaimWire {
  HeaderWire header;
  uint64_t token;
  Proof proof;
};
struct [[gnu::packed]] EndpointWire {
  uint16_t family;
  uint16_t port;
  uint8_t ip[16];
};
struct [[gnu::packed]] AnswerWire {
  HeaderWire header;
  uint64_t token;
  EndpointWire endpoint;
  Proof proof;
};
// As long as version 1's only message, so that a fabric of version 1 can read our version in it.
struct [[gnu::packed]] RefusalWire {
  HeaderWire header;
  Refusal reason;
  uint8_t zeros[20];
};
static_assert(sizeof(GreetingWire) == 48 && sizeof(ClaimWire) == 56 && sizeof(AnswerWire) == 76 &&
              sizeof(RefusalWire) == 40);

bool AllZero(absl::Span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

HeaderWire HeaderOf(Kind kind) { return {kMagic, kHandshakeVersion, kind}; }

template <typename Wire>
std::vector<uint8_t> Bytes(const Wire& wire) {
  std::vector<uint8_t> bytes(sizeof(wire));
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

template <typename Wire>
Wire Read(absl::Span<const uint8_t> bytes) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  return wire;
}

EndpointWire ToWire(const SocketAddress& address) {
  EndpointWire wire = {};
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, &address.storage, sizeof(ipv4));
    wire.family = 4;
    wire.port = ntohs(ipv4.sin_port);
    std::memcpy(wire.ip, &ipv4.sin_addr, sizeof(ipv4.sin_addr));
  } else if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, &address.storage, sizeof(ipv6));
    wire.family = 6;
    wire.port = ntohs(ipv6.sin6_port);
    std::memcpy(wire.ip, &ipv6.sin6_addr, sizeof(ipv6.sin6_addr));
  }
  return wire;
}

absl::StatusOr<SocketAddress> FromWire(const EndpointWire& wire) {
  SocketAddress address;
  constexpr size_t kIpv4Bytes = 4;
  if (wire.family == 4) {
    if (!AllZero(absl::MakeSpan(wire.ip).subspan(kIpv4Bytes))) {
      return absl::InvalidArgumentError("bytes behind an IPv4 address");
    }
    sockaddr_in ipv4 = {};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(wire.port);
    std::memcpy(&ipv4.sin_addr, wire.ip, sizeof(ipv4.sin_addr));
    std::memcpy(&address.storage, &ipv4, sizeof(ipv4));
    address.size = sizeof(ipv4);
  } else if (wire.family == 6) {
    sockaddr_in6 ipv6 = {};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(wire.port);
    std::memcpy(&ipv6.sin6_addr, wire.ip, sizeof(ipv6.sin6_addr));
    std::memcpy(&address.storage, &ipv6, sizeof(ipv6));
    address.size = sizeof(ipv6);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("address family ", wire.family, ", must be 4 or 6"));
  }
  return address;
}

std::vector<uint8_t> Encode(const Greeting& greeting) {
  return Bytes(GreetingWire{HeaderOf(Kind::kGreeting), greeting.nonce});
}

std::vector<uint8_t> Encode(const Claim& claim) {
  return Bytes(ClaimWire{HeaderOf(Kind::kClaim), claim.token, claim.proof});
}

std::vector<uint8_t> Encode(const Answer& answer) {
  return Bytes(
      AnswerWire{HeaderOf(Kind::kAnswer), answer.token, ToWire(answer.endpoint), answer.proof});
}

std::vector<uint8_t> Encode(Refusal refusal) {
  return Bytes(RefusalWire{HeaderOf(Kind::kRefusal), refusal, {}});
}

// 0: no such kind.
size_t SizeOf(Kind kind) {
  switch (kind) {
    case Kind::kGreeting:
      return sizeof(GreetingWire);
    case Kind::kClaim:
      return sizeof(ClaimWire);
    case Kind::kAnswer:
      return sizeof(AnswerWire);
    case Kind::kRefusal:
      return sizeof(RefusalWire);
  }
  return 0;
}

absl::StatusOr<HandshakeMessage> ParseRefusal(const RefusalWire& wire) {
  const auto reason = static_cast<uint32_t>(wire.reason);
  if (reason < 1 || reason > 3 || !AllZero(wire.zeros)) {
    return absl::InvalidArgumentError(
        absl::StrCat("refused for reason ", reason, ", must be 1 to 3 and nothing else"));
  }
  return wire.reason;
}

absl::StatusOr<HandshakeMessage> ParseWhole(Kind kind, absl::Span<const uint8_t> bytes) {
  switch (kind) {
    case Kind::kGreeting:
      return Greeting{Read<GreetingWire>(bytes).nonce};
    case Kind::kClaim: {
      const auto wire = Read<ClaimWire>(bytes);
      return Claim{wire.token, wire.proof};
    }
    case Kind::kAnswer: {
      const auto wire = Read<AnswerWire>(bytes);
      const auto endpoint = FromWire(wire.endpoint);
      if (!endpoint.ok()) return endpoint.status();
      return Answer{wire.token, *endpoint, wire.proof};
    }
    case Kind::kRefusal:
      break;
  }
  return ParseRefusal(Read<RefusalWire>(bytes));
}

// What an HMAC is taken of.
class Transcript {
 public:
  explicit Transcript(absl::string_view label, const Nonces& nonces) {
    Add(label.data(), label.size());
    Add(nonces.client.data(), nonces.client.size());
    Add(nonces.server.data(), nonces.server.size());
  }
  template <typename Wire>
  void Add(const Wire& wire) {
    Add(&wire, sizeof(wire));
  }
  Proof Sign(const std::string& secret) const {
    Proof proof;
    unsigned int size = 0;
    SPECFABRIC_CHECK(secret.size() <= INT_MAX);
    SPECFABRIC_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          bytes_.data(), bytes_.size(), proof.data(), &size) != nullptr);
    SPECFABRIC_CHECK(size == proof.size());
    return proof;
  }

 private:
  void Add(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }

  std::vector<uint8_t> bytes_;
};

template <typename T>
T Random() {
  T value;
  // So few bytes are never cut short, and only an old kernel's early boot could fail.
  SPECFABRIC_CHECK(getrandom(&value, sizeof(value), 0) == sizeof(value));
  return value;
}

}  // namespace

std::vector<uint8_t> EncodeHandshake(const HandshakeMessage& message) {
  return std::visit([](const auto& kind) { return Encode(kind); }, message);
}

absl::StatusOr<std::optional<HandshakeMessage>> ParseHandshake(absl::Span<const uint8_t> stream) {
  HeaderWire header = {};
  if (!stream.empty()) {
    std::memcpy(&header, stream.data(), std::min(stream.size(), sizeof(header)));
  }
  if (std::memcmp(&header, &kMagic, std::min(stream.size(), sizeof(kMagic))) != 0) {
    return absl::InvalidArgumentError("not a SpecFabric peer");
  }
  if (stream.size() < offsetof(HeaderWire, kind)) return std::nullopt;
  if (header.version != kHandshakeVersion) {
    const uint32_t version = header.version;
    return absl::FailedPreconditionError(
        absl::StrCat("transport version ", version, ", must be ", kHandshakeVersion));
  }
  if (stream.size() < sizeof(header)) return std::nullopt;
  const Kind kind = header.kind;
  const size_t size = SizeOf(kind);
  if (size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("message kind ", static_cast<uint32_t>(kind), ", must be 1 to 4"));
  }
  if (stream.size() < size) return std::nullopt;
  if (stream.size() > size) return absl::InvalidArgumentError("unexpected bytes from the peer");
  auto message = ParseWhole(kind, stream);
  if (!message.ok()) return message.status();
  return *std::move(message);
}

Proof ClientProof(const std::string& secret, const Nonces& nonces, uint64_t client_token) {
  Transcript transcript(kClientLabel, nonces);
  transcript.Add(client_token);
  return transcript.Sign(secret);
}

Proof ServerProof(const std::string& secret, const Nonces& nonces, uint64_t client_token,
                  uint64_t server_token, const SocketAddress& endpoint) {
  Transcript transcript(kServerLabel, nonces);
  transcript.Add(client_token);
  transcript.Add(server_token);
  transcript.Add(ToWire(endpoint));
  return transcript.Sign(secret);
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce RandomNonce() { return Random<Nonce>(); }

uint64_t RandomToken() { return Random<uint64_t>(); }

}  // namespace specfabric::transport
