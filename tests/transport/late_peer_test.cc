// Peers that connect to UCX's listener after they were given up, and peers that never answer there.

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/node.h"
#include "tests/transport/raw_socket.h"
#include "transport/handshake.h"

namespace specfabric::transport {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kToken = 7;

// The next message, which must be one of type T.
template <typename T>
T Hear(const RawConnection& connection, size_t bytes) {
  return std::get<T>(**ParseHandshake(connection.Receive(bytes)));
}

// Proves the secret to the client, and names an address for UCX where nothing answers.
class Decoy {
 public:
  const std::string& address() const { return control_.address(); }
  RawConnection Lead() const;
  RawConnection AcceptUcx() const { return RawConnection(RawConnection::Accepted{ucx_.Accept()}); }

 private:
  SilentServer control_, ucx_;
};

// Blocking. The control connection must stay open meanwhile.
RawConnection Decoy::Lead() const {
  RawConnection peer(RawConnection::Accepted{control_.Accept()});
  Nonces nonces;
  nonces.client = Hear<Greeting>(peer, EncodeHandshake(Greeting{}).size()).nonce;
  nonces.server = RandomNonce();
  peer.Send(EncodeHandshake(Greeting{nonces.server}));
  const uint64_t token = Hear<Claim>(peer, EncodeHandshake(Claim{}).size()).token;
  const SocketAddress endpoint = ResolveAddress(ucx_.address()).value();
  peer.Send(
      EncodeHandshake(Answer{kToken, endpoint, ServerProof("", nonces, token, kToken, endpoint)}));
  return peer;
}

// The first bytes that UCX sends to the address of a peer's listener.
Bytes FirstWordsOfUcx() {
  const Decoy decoy;
  Node client;
  EXPECT_TRUE(client.fabric().Connect(decoy.address()).ok());
  const RawConnection control = decoy.Lead();
  return decoy.AcceptUcx().ReceiveSome();
}

// A peer that has proven the secret and was told where UCX listens for it.
struct Expected {
  explicit Expected(uint16_t port) : control(port) {
    Nonces nonces;
    nonces.client = RandomNonce();
    control.Send(EncodeHandshake(Greeting{nonces.client}));
    nonces.server = Hear<Greeting>(control, EncodeHandshake(Greeting{}).size()).nonce;
    control.Send(EncodeHandshake(Claim{kToken, ClientProof("", nonces, kToken)}));
    const size_t bytes =
        EncodeHandshake(Answer{0, ResolveAddress("127.0.0.1:1").value(), {}}).size();
    const SocketAddress endpoint = Hear<Answer>(control, bytes).endpoint;
    ucx_port = ntohs(reinterpret_cast<const sockaddr_in&>(endpoint.storage).sin_port);
  }
  RawConnection control;
  uint16_t ucx_port = 0;
};

// If the listener ended 200 ms after its peer was given up, UCX 1.13 would crash here.
TEST(LatePeerTest, LateConnectionToTheUcxListenerIsRejected) {
  const Bytes words = FirstWordsOfUcx();
  ASSERT_THAT(words, Not(IsEmpty()));
  Node server;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  std::optional<Expected> peer(PortOf(address));
  const RawConnection late(peer->ucx_port);
  peer.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  late.Send(words);
  EXPECT_TRUE(late.ReceiveToEnd().has_value());
  Node client;
  ASSERT_TRUE(client.fabric().Connect(address).ok());
  EXPECT_TRUE(server.WaitForOpen(1));
}

// After a late connection the listener ends as soon as a used one.
TEST(LatePeerTest, TheListenerEndsAfterALateConnection) {
  Node server;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  std::optional<Expected> peer(PortOf(address));
  EXPECT_THAT(OwnListeningPorts(), Contains(peer->ucx_port));
  const uint16_t port = peer->ucx_port;
  const RawConnection late(port);
  peer.reset();
  late.Send(FirstWordsOfUcx());
  EXPECT_TRUE(late.ReceiveToEnd().has_value());
  const auto gone = [&] {
    const std::vector<uint16_t> ports = OwnListeningPorts();
    return std::find(ports.begin(), ports.end(), port) == ports.end();
  };
  EXPECT_TRUE(Eventually(gone));
}

// A peer that is lost while connecting may have blocked the shared-memory queue, and the next peer
// that does not connect makes that likely. But a third one still answers through the queue.
TEST(SilentPeerTest, OtherConnectionsAreKept) {
  Node other;
  FabricOptions options = LoopbackOptions();
  options.connect_timeout = base::kSecond;
  Node node(options);
  ASSERT_TRUE(node.fabric().Connect(other.fabric().Listen(AnyPort()).value()).ok());
  ASSERT_TRUE(node.WaitForOpen(1));
  for (int i = 0; i < 3; ++i) {
    const Decoy decoy;
    const PeerId silent = node.fabric().Connect(decoy.address()).value();
    const RawConnection control = decoy.Lead();
    ASSERT_TRUE(node.WaitForClose(silent));
  }
  EXPECT_EQ(node.fabric().stats().restarts, 0u);
  EXPECT_THAT(node.fabric().Connections(), SizeIs(1));
}

}  // namespace
}  // namespace specfabric::transport
