// Which peers are accepted: fabrics with and without the join secret, and unauthenticated peers.

#include <algorithm>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/log_capture.h"
#include "tests/transport/node.h"
#include "tests/transport/raw_socket.h"
#include "transport/handshake.h"

namespace specfabric::transport {
namespace {

using base::LogCapture;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Bytes = std::vector<uint8_t>;

const std::string kSecret = "hush: a secret of this cluster";

FabricOptions WithSecret(const std::string& secret) {
  FabricOptions options = LoopbackOptions();
  options.join_secret = secret;
  return options;
}

bool WaitForStats(Node& node, const std::function<bool(const FabricStats&)>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (!condition(node.fabric().stats())) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool GetsIn(Node& server, Node& client, const std::string& address) {
  const size_t before = server.opened().size();
  const PeerId peer = client.fabric().Connect(address).value();
  return client.WaitForOutcome(peer) && server.WaitForOpen(before + 1);
}

TEST(SecretTest, PeersWithTheSecretAreAccepted) {
  // Arbitrary bytes, also zeros.
  const std::string binary("\0\n\xff\0 0123456789abcdef", 21);
  for (const std::string& secret : {kSecret, binary}) {
    Node server(WithSecret(secret), /*echo=*/true);
    Node client(WithSecret(secret));
    const std::string address = server.fabric().Listen(AnyPort()).value();
    const PeerId peer = client.fabric().Connect(address).value();
    ASSERT_TRUE(client.fabric().Send(peer, 1, {1, 2, 3}).ok());
    ASSERT_TRUE(client.WaitForFrames(1));
    EXPECT_EQ(server.fabric().stats().refused_secrets, 0u);
    EXPECT_EQ(client.fabric().stats().refused_secrets, 0u);
  }
}

struct Secrets {
  std::string server, client;
};

class WrongSecretTest : public ::testing::TestWithParam<Secrets> {};

TEST_P(WrongSecretTest, IsRefusedCountedAndTold) {
  std::string log;
  {
    LogCapture capture;
    {
      Node server(WithSecret(GetParam().server));
      Node client(WithSecret(GetParam().client));
      const std::string address = server.fabric().Listen(AnyPort()).value();
      for (uint64_t attempt = 1; attempt <= 3; ++attempt) {
        const PeerId peer = client.fabric().Connect(address).value();
        ASSERT_TRUE(client.WaitForClose(peer));
        EXPECT_EQ(client.closed(peer)[0],
                  absl::PermissionDeniedError(address + ": refused: the join secret differs"));
        ASSERT_TRUE(WaitForStats(
            server, [&](const FabricStats& stats) { return stats.connect_failures == attempt; }));
        EXPECT_EQ(server.fabric().stats().refused_secrets, attempt);
        EXPECT_EQ(client.fabric().stats().connect_failures, attempt);
      }
      EXPECT_EQ(client.fabric().stats().refused_secrets, 0u);
      EXPECT_THAT(client.opened(), IsEmpty());
      EXPECT_THAT(server.opened(), IsEmpty());
    }
    log = capture.text();
  }
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << log;
  EXPECT_THAT(log, HasSubstr("peer=" + TestNetwork()));
  EXPECT_THAT(log, HasSubstr("refused: its join secret differs"));
  EXPECT_THAT(log, Not(HasSubstr("hush")));
}

INSTANTIATE_TEST_SUITE_P(EitherSide, WrongSecretTest,
                         ::testing::Values(Secrets{kSecret, "another cluster's secret"},
                                           Secrets{kSecret, ""}, Secrets{"", kSecret},
                                           Secrets{kSecret, kSecret + "\n"}));

TEST(SecretTest, ARefusedPeerDoesNotDisturbTheOthers) {
  Node server(WithSecret(kSecret), /*echo=*/true);
  Node good(WithSecret(kSecret));
  Node bad(WithSecret("wrong"));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const PeerId peer = good.fabric().Connect(address).value();
  for (size_t i = 1; i <= 20; ++i) {
    const PeerId refused = bad.fabric().Connect(address).value();
    ASSERT_TRUE(bad.WaitForClose(refused));
    ASSERT_TRUE(good.fabric().Send(peer, 1, {1}).ok());
    ASSERT_TRUE(good.WaitForFrames(i));
  }
}

// A listener that speaks the protocol but does not know the secret.
TEST(SecretTest, AnImpostorIsNotConnectedTo) {
  const SilentServer listener;
  Node client(WithSecret(kSecret));
  const PeerId peer = client.fabric().Connect(listener.address()).value();
  const RawConnection impostor(RawConnection::Accepted{listener.Accept()});
  const size_t greeting = EncodeHandshake(Greeting{}).size();
  const auto heard = ParseHandshake(impostor.Receive(greeting));
  ASSERT_TRUE(heard.ok() && heard->has_value());
  const Nonces nonces = {std::get<Greeting>(**heard).nonce, RandomNonce()};
  impostor.Send(EncodeHandshake(Greeting{nonces.server}));
  const auto claim = ParseHandshake(impostor.Receive(EncodeHandshake(Claim{}).size()));
  ASSERT_TRUE(claim.ok() && claim->has_value());
  const uint64_t token = std::get<Claim>(**claim).token;
  const SocketAddress endpoint = ResolveAddress("127.0.0.1:9").value();
  impostor.Send(
      EncodeHandshake(Answer{1, endpoint, ServerProof("wrong", nonces, token, 1, endpoint)}));
  EXPECT_EQ(impostor.ReceiveToEnd(), EncodeHandshake(Refusal::kSecret));
  ASSERT_TRUE(client.WaitForClose(peer));
  EXPECT_EQ(client.closed(peer)[0],
            absl::UnauthenticatedError(listener.address() + ": its join secret differs"));
  EXPECT_EQ(client.fabric().stats().refused_secrets, 1u);
}

TEST(SecretTest, OtherVersionIsTold) {
  Node server(WithSecret(kSecret));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const RawConnection old(PortOf(address));
  Bytes hello(40);
  const std::string header("$SPECFB1\x01\0\0\0", 12);
  std::copy(header.begin(), header.end(), hello.begin());
  old.Send(hello);
  EXPECT_EQ(old.ReceiveToEnd(), EncodeHandshake(Refusal::kVersion));
  EXPECT_TRUE(
      WaitForStats(server, [](const FabricStats& stats) { return stats.connect_failures == 1; }));
  EXPECT_EQ(server.fabric().stats().refused_secrets, 0u);
}

TEST(UnauthenticatedPeerTest, IsClosedAtTheDeadlineWhereverItStops) {
  FabricOptions options = WithSecret(kSecret);
  options.connect_timeout = ShortConnectTimeout();
  Node server(options);
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const Bytes greeting = EncodeHandshake(Greeting{RandomNonce()});
  for (size_t length : {size_t{0}, size_t{1}, size_t{12}, greeting.size() - 1, greeting.size()}) {
    const RawConnection unauthenticated(PortOf(address));
    unauthenticated.Send(Bytes(greeting.begin(), greeting.begin() + length));
    const auto heard = unauthenticated.ReceiveToEnd();
    ASSERT_TRUE(heard.has_value()) << "never closed after " << length << " bytes";
    // It gets no more than a nonce, and that only after its own greeting.
    EXPECT_THAT(*heard, SizeIs(length == greeting.size() ? greeting.size() : 0));
  }
  // A connection is counted a moment after its socket has closed.
  EXPECT_TRUE(
      WaitForStats(server, [](const FabricStats& stats) { return stats.connect_failures == 5; }));
  EXPECT_EQ(server.fabric().stats().refused_secrets, 0u);
  Node client(WithSecret(kSecret));
  EXPECT_TRUE(GetsIn(server, client, address));
}

TEST(UnauthenticatedPeerTest, UcxDoesNotListenForIt) {
  Node server(WithSecret(kSecret));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const std::vector<uint16_t> before = OwnListeningPorts();
  const RawConnection unauthenticated(PortOf(address));
  unauthenticated.Send(EncodeHandshake(Greeting{}));
  unauthenticated.Receive(EncodeHandshake(Greeting{}).size());
  unauthenticated.Send(EncodeHandshake(Claim{}));
  EXPECT_EQ(unauthenticated.ReceiveToEnd(), EncodeHandshake(Refusal::kSecret));
  EXPECT_EQ(OwnListeningPorts(), before);
}

TEST(UnauthenticatedPeerTest, ManyDoNotBlockAnAuthenticatedPeer) {
  FabricOptions options = WithSecret(kSecret);
  options.max_peers = 1;
  options.connect_timeout = 60 * base::kSecond;  // so that no unauthenticated peer times out
  Node server(options);
  const std::string address = server.fabric().Listen(AnyPort()).value();
  std::vector<RawConnection> unauthenticated;
  for (int i = 0; i < 330; ++i) {
    unauthenticated.emplace_back(PortOf(address));
    if (i % 3 == 1) unauthenticated.back().Send({'$', 'S'});
    if (i % 3 == 2) unauthenticated.back().Send(EncodeHandshake(Greeting{RandomNonce()}));
  }
  Node client(WithSecret(kSecret));
  ASSERT_TRUE(GetsIn(server, client, address));
  // The oldest was closed without an answer; the others are still kept.
  EXPECT_THAT(unauthenticated.front().ReceiveToEnd(), testing::Optional(IsEmpty()));
  EXPECT_GE(server.fabric().stats().connect_failures, 330u - 256u);
  EXPECT_LE(server.fabric().stats().connect_failures, 330u - 256u + 1u);
  EXPECT_EQ(server.fabric().stats().refused_secrets, 0u);
}

TEST(UnauthenticatedPeerTest, PeerBeyondTheLimitIsTold) {
  FabricOptions options = WithSecret(kSecret);
  options.max_peers = 1;
  Node server(options);
  Node client(WithSecret(kSecret));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  ASSERT_TRUE(GetsIn(server, client, address));
  const PeerId second = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.WaitForClose(second));
  EXPECT_EQ(client.closed(second)[0],
            absl::ResourceExhaustedError(address + ": refused: it has too many peers already"));
}

}  // namespace
}  // namespace specfabric::transport
