// The two sides of a control connection, and peers that break its protocol.

#include "transport/control.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <tuple>

#include "gtest/gtest.h"

namespace specfabric::transport {
namespace {

using Bytes = std::vector<uint8_t>;
using Side = ControlConnection::Side;

const std::string kSecret = "a secret of the cluster";
const std::string kOther = "another cluster's secret";
const std::string kNone;

SocketAddress Endpoint() { return ResolveAddress("10.1.2.3:4567").value(); }

// A connection's two sockets, both non-blocking.
std::pair<UniqueFd, UniqueFd> Sockets() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
  return {UniqueFd(pair[0]), UniqueFd(pair[1])};
}

Bytes Take(int socket) {
  Bytes bytes(4096);
  const ssize_t received = recv(socket, bytes.data(), bytes.size(), 0);
  bytes.resize(received < 0 ? 0 : static_cast<size_t>(received));
  return bytes;
}

void Give(int socket, const Bytes& bytes) {
  ASSERT_EQ(send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()))
      << std::strerror(errno);
}

// One side, driven as the engine does, and its outcome.
struct End {
  End(UniqueFd socket, Side its_side, uint64_t token, const std::string& secret)
      : side(its_side), control(std::move(socket)) {
    control.Begin(side, token, secret);
  }

  // The engine closes a connection whose Advance fails.
  void Turn() {
    while (status.ok()) {
      const auto advanced = control.Advance();
      status = advanced.status();
      if (!status.ok()) return control.Close();
      if (!advanced->has_value()) return;
      introductions.push_back(**advanced);
      if (side == Side::kServer) control.AnswerWith(Endpoint());
    }
  }

  Side side;
  ControlConnection control;
  absl::Status status;
  std::vector<Introduction> introductions;
};

// A client and a server joined by two hops, between which `meddle` may change what the client
// (true) or the server (false) sent in its n-th write.
struct Conversation {
  Conversation(const std::string& client_secret, const std::string& server_secret)
      : Conversation(Sockets(), Sockets(), client_secret, server_secret) {}

  void Run(const std::function<void(bool client, int nth, Bytes&)>& meddle = nullptr) {
    int from_client = 0, from_server = 0;
    for (int idle = 0; idle < 2;) {
      client.Turn();
      server.Turn();
      const bool from_it = Carry(to_client, to_server, true, from_client, meddle);
      const bool to_it = Carry(to_server, to_client, false, from_server, meddle);
      idle = from_it || to_it ? 0 : idle + 1;
    }
    to_client.reset();
    to_server.reset();
    client.Turn();
    server.Turn();
  }

  UniqueFd to_client, to_server;
  End client, server;

 private:
  using Pair = std::pair<UniqueFd, UniqueFd>;
  Conversation(Pair a, Pair b, const std::string& client_secret, const std::string& server_secret)
      : to_client(std::move(a.first)),
        to_server(std::move(b.first)),
        client(std::move(a.second), Side::kClient, 11, client_secret),
        server(std::move(b.second), Side::kServer, 22, server_secret) {}

  static bool Carry(const UniqueFd& from, const UniqueFd& to, bool client, int& nth,
                    const std::function<void(bool, int, Bytes&)>& meddle) {
    Bytes bytes = Take(from.get());
    if (bytes.empty()) return false;
    if (meddle) meddle(client, nth, bytes);
    ++nth;
    // The other side may have closed already.
    (void)send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return true;
  }
};

TEST(ControlTest, BothSidesProveTheSecretAndExchangeTokens) {
  for (const std::string& secret : {kSecret, kNone, std::string(100'000, 'x')}) {
    Conversation talk(secret, secret);
    talk.Run();
    ASSERT_EQ(talk.server.introductions.size(), 1u) << talk.server.status;
    EXPECT_EQ(talk.server.introductions[0].token, 11u);
    EXPECT_EQ(talk.server.introductions[0].endpoint.size, 0u);
    ASSERT_EQ(talk.client.introductions.size(), 1u) << talk.client.status;
    EXPECT_EQ(talk.client.introductions[0].token, 22u);
    EXPECT_EQ(FormatAddress(talk.client.introductions[0].endpoint.storage), "10.1.2.3:4567");
    EXPECT_TRUE(talk.client.control.proven());
    EXPECT_TRUE(talk.server.control.proven());
    // The connection ends normally.
    EXPECT_EQ(talk.client.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(talk.server.status.code(), absl::StatusCode::kUnavailable);
  }
}

TEST(ControlTest, WorksByteByByte) {
  auto [wire, socket] = Sockets();
  auto [other_wire, other_socket] = Sockets();
  End client(std::move(socket), Side::kClient, 11, kSecret);
  End server(std::move(other_socket), Side::kServer, 22, kSecret);
  for (int round = 0; round < 3; ++round) {
    client.Turn();
    for (uint8_t byte : Take(wire.get())) {
      EXPECT_TRUE(server.introductions.empty());
      Give(other_wire.get(), {byte});
      server.Turn();
    }
    for (uint8_t byte : Take(other_wire.get())) {
      EXPECT_TRUE(client.introductions.empty());
      Give(wire.get(), {byte});
      client.Turn();
    }
  }
  EXPECT_EQ(server.introductions.size(), 1u) << server.status;
  EXPECT_EQ(client.introductions.size(), 1u) << client.status;
}

TEST(ControlTest, WrongSecretIsRefusedAndReportedOnBothSides) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {kSecret, kOther}, {kSecret, kNone}, {kNone, kSecret}, {kSecret, kSecret + "\n"}};
  for (const auto& [client, server] : pairs) {
    Conversation talk(client, server);
    size_t told = 0;  // bytes that the server sent
    talk.Run([&](bool from_client, int, Bytes& bytes) { told += from_client ? 0 : bytes.size(); });
    EXPECT_EQ(talk.server.status, absl::UnauthenticatedError("its join secret differs"));
    EXPECT_EQ(talk.client.status, absl::PermissionDeniedError("refused: the join secret differs"));
    EXPECT_TRUE(talk.server.introductions.empty());
    EXPECT_TRUE(talk.client.introductions.empty());
    EXPECT_FALSE(talk.server.control.proven());
    EXPECT_EQ(told, 48u + 40u) << "a greeting and a refusal, and nothing else";
  }
}

// With any single bit changed on the way, neither side accepts a changed introduction, and the
// other is told or sees the connection end.
TEST(ControlTest, AnyFlippedBitIsDetected) {
  const std::vector<std::tuple<bool, int, size_t>> writes = {
      {true, 0, 48}, {false, 0, 48}, {true, 1, 56}, {false, 1, 76}};
  for (const auto& [whose, which, size] : writes) {
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      Conversation talk(kSecret, kSecret);
      talk.Run([&, whose = whose, which = which, size = size](bool client, int nth, Bytes& bytes) {
        if (client != whose || nth != which) return;
        ASSERT_EQ(bytes.size(), size);
        bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      });
      // Only the last message comes after the server has accepted the client.
      const bool last = !whose && which == 1;
      EXPECT_EQ(talk.server.introductions.size(), last ? 1u : 0u)
          << whose << which << " bit " << bit << ": " << talk.server.status;
      EXPECT_TRUE(talk.client.introductions.empty()) << whose << which << " bit " << bit;
      EXPECT_FALSE(talk.client.status.ok()) << whose << which << " bit " << bit;
      EXPECT_FALSE(talk.server.status.ok()) << whose << which << " bit " << bit;
    }
  }
}

TEST(ControlTest, OtherVersionIsRefusedAndTold) {
  auto [wire, socket] = Sockets();
  End server(std::move(socket), Side::kServer, 22, kSecret);
  // What a fabric of version 1 begins with.
  Bytes hello(40);
  std::memcpy(hello.data(), "$SPECFB1\x01\0\0\0", 12);
  Give(wire.get(), hello);
  server.Turn();
  EXPECT_EQ(server.status, absl::FailedPreconditionError("transport version 1, must be 2"));
  const Bytes answer = Take(wire.get());
  ASSERT_EQ(answer.size(), 40u);
  EXPECT_EQ(std::memcmp(answer.data(), "$SPECFB1\x02\0\0\0", 12), 0);

  // And the other way round, from a later version.
  auto [far_wire, far_socket] = Sockets();
  End client(std::move(far_socket), Side::kClient, 11, kSecret);
  client.Turn();
  Bytes refusal = EncodeHandshake(Refusal::kVersion);
  refusal[8] = 3;
  Give(far_wire.get(), refusal);
  far_wire.reset();
  client.Turn();
  EXPECT_EQ(client.status, absl::FailedPreconditionError("transport version 3, must be 2"));
}

// Unauthenticated peers and impostors.

// Plays the server to a client, or the client to a server, without knowing the secret.
struct Impostor {
  explicit Impostor(Side whom) : Impostor(Sockets(), whom) {}
  explicit Impostor(std::pair<UniqueFd, UniqueFd> sockets, Side whom)
      : wire(std::move(sockets.first)), victim(std::move(sockets.second), whom, 11, kSecret) {
    victim.Turn();
  }
  Bytes Hear() { return Take(wire.get()); }
  void Say(const Bytes& bytes) {
    Give(wire.get(), bytes);
    victim.Turn();
  }
  void Say(const HandshakeMessage& message) { Say(EncodeHandshake(message)); }
  absl::StatusCode outcome() const { return victim.status.code(); }

  UniqueFd wire;
  End victim;
};

template <typename Message>
Message Parse(const Bytes& bytes) {
  return std::get<Message>(ParseHandshake(bytes).value().value());
}

TEST(ImpostorTest, EchoedMessagesDoNotProveTheServer) {
  Impostor server(Side::kClient);
  server.Say(server.Hear());  // the client's own greeting
  server.Say(server.Hear());  // the client's own claim
  EXPECT_EQ(server.outcome(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(server.victim.introductions.empty());
}

TEST(ImpostorTest, AClientsOwnProofDoesNotProveTheServer) {
  Impostor server(Side::kClient);
  server.Say(Greeting{Parse<Greeting>(server.Hear()).nonce});  // the same nonce back
  const Claim claim = Parse<Claim>(server.Hear());
  server.Say(Answer{claim.token, Endpoint(), claim.proof});
  EXPECT_EQ(server.outcome(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(server.victim.introductions.empty());
  EXPECT_EQ(Parse<Refusal>(server.Hear()), Refusal::kSecret);
}

// The impostor accepts one fabric, connects to another, and forwards messages between them.
TEST(ImpostorTest, ProofForOtherNoncesIsRefused) {
  Impostor to_client(Side::kClient);
  Impostor to_server(Side::kServer);
  to_client.Hear();
  to_server.Say(
      Greeting{RandomNonce()});  // not the client's: the impostor needs a session of its own
  const Greeting servers = Parse<Greeting>(to_server.Hear());
  to_client.Say(servers);
  const Claim claim = Parse<Claim>(to_client.Hear());
  to_server.Say(claim);
  EXPECT_EQ(to_server.outcome(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(to_server.victim.introductions.empty());
}

TEST(ImpostorTest, RecordedHandshakeCannotBeReplayed) {
  std::vector<Bytes> recorded;
  Conversation talk(kSecret, kSecret);
  talk.Run([&](bool client, int, Bytes& bytes) {
    if (client) recorded.push_back(bytes);
  });
  ASSERT_EQ(recorded.size(), 2u);
  ASSERT_EQ(talk.server.introductions.size(), 1u);
  Impostor again(Side::kServer);
  again.Say(recorded[0]);
  again.Say(recorded[1]);
  EXPECT_EQ(again.outcome(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(again.victim.introductions.empty());
}

TEST(ImpostorTest, MessagesOutOfOrderAreRefused) {
  const Claim claim{1, {}};
  const Answer answer{1, Endpoint(), {}};
  const std::vector<HandshakeMessage> not_first = {claim, answer};
  for (const HandshakeMessage& message : not_first) {
    for (Side victim : {Side::kClient, Side::kServer}) {
      Impostor impostor(victim);
      impostor.Say(message);
      EXPECT_EQ(impostor.outcome(), absl::StatusCode::kInvalidArgument);
    }
  }
  const std::vector<HandshakeMessage> not_second = {Greeting{}, answer};
  for (const HandshakeMessage& message : not_second) {
    Impostor client(Side::kServer);
    client.Say(Greeting{});
    client.Say(message);
    EXPECT_EQ(client.outcome(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ImpostorTest, TwoMessagesAtOnceAreRefused) {
  Bytes both = EncodeHandshake(Greeting{});
  const Bytes claim = EncodeHandshake(Claim{});
  both.insert(both.end(), claim.begin(), claim.end());
  Impostor client(Side::kServer);
  client.Say(both);
  EXPECT_EQ(client.outcome(), absl::StatusCode::kInvalidArgument);
  Impostor flood(Side::kServer);
  flood.Say(Bytes(10'000, '$'));
  EXPECT_EQ(flood.outcome(), absl::StatusCode::kInvalidArgument);
}

// After the handshake the connection is silent.
TEST(ImpostorTest, BytesAfterTheHandshakeAreRefused) {
  const std::vector<Bytes> all = {{'x'},
                                  EncodeHandshake(Greeting{}),
                                  EncodeHandshake(Claim{}),
                                  EncodeHandshake(Answer{1, Endpoint(), {}})};
  for (const Bytes& bytes : all) {
    Impostor peer(Side::kServer);
    const Nonce nonce = RandomNonce();
    peer.Say(Greeting{nonce});
    const Nonces nonces = {nonce, Parse<Greeting>(peer.Hear()).nonce};
    peer.Say(Claim{5, ClientProof(kSecret, nonces, 5)});
    ASSERT_EQ(peer.victim.introductions.size(), 1u);
    ASSERT_TRUE(peer.victim.status.ok());
    peer.Say(bytes);
    EXPECT_EQ(peer.outcome(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ImpostorTest, AfterHalfAMessageTheOtherSideWaits) {
  for (size_t length : {0, 1, 8, 12, 16, 47}) {
    Impostor client(Side::kServer);
    Bytes greeting = EncodeHandshake(Greeting{});
    greeting.resize(length);
    client.Say(greeting);
    EXPECT_TRUE(client.victim.status.ok()) << "the engine's deadline ends it";
    EXPECT_TRUE(client.Hear().empty());
    client.wire.reset();
    client.victim.Turn();
    EXPECT_EQ(client.outcome(), absl::StatusCode::kUnavailable);
  }
}

TEST(ImpostorTest, RefusalsAreReadAtAnyTime) {
  Impostor full(Side::kClient);
  full.Say(Refusal::kFull);
  EXPECT_EQ(full.outcome(), absl::StatusCode::kResourceExhausted);
  Impostor secret(Side::kServer);
  secret.Say(Greeting{});
  secret.Say(Refusal::kSecret);
  EXPECT_EQ(secret.outcome(), absl::StatusCode::kPermissionDenied);
  Impostor version(Side::kClient);
  version.Say(Refusal::kVersion);  // invalid: it is of our own version
  EXPECT_EQ(version.outcome(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::transport
