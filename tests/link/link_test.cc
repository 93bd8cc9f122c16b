// Handshakes, refusals, malformed messages, keep-alive and reconnection. A bare fabric takes the
// part of a peer that breaks the protocol, a stopped child process that of a silent one.

#include "link/link.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "link/fabric_counters.h"
#include "tests/link/service.h"
#include "tests/transport/child_process.h"
#include "tests/transport/node.h"

namespace specfabric::link {
namespace {

using schemas::MessageType;
using schemas::Role;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using transport::ChildProcess;
using transport::Node;

LinkOptions Listening(Role role = Role::kDraft, const std::string& address = transport::AnyPort()) {
  LinkOptions options = TestOptions(role);
  options.listen = address;
  return options;
}

LinkOptions ConnectingTo(const std::string& address, Role role = Role::kTarget) {
  LinkOptions options = TestOptions(role);
  options.connect = {address};
  return options;
}

// Waits for a counter of the link, which changes without any callback.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(HandshakeTest, BothSidesReceiveTheOthersHello) {
  LinkOptions draft_options = Listening();
  draft_options.hello.vocabulary = 32'000;
  draft_options.hello.numerics_fingerprint = 77;
  draft_options.hello.incarnation = 5;
  Service draft(draft_options);
  Service target(ConnectingTo(draft.link().listen_address()));
  ASSERT_TRUE(draft.WaitForUps(1) && target.WaitForUps(1));

  const auto seen_by_target = target.ups()[0];
  EXPECT_EQ(seen_by_target.hello.role, Role::kDraft);
  EXPECT_EQ(seen_by_target.hello.vocabulary, 32'000);
  EXPECT_EQ(seen_by_target.hello.numerics_fingerprint, 77u);
  EXPECT_EQ(seen_by_target.hello.incarnation, 5u);
  EXPECT_EQ(seen_by_target.address, draft.link().listen_address());
  const auto seen_by_draft = draft.ups()[0];
  EXPECT_EQ(seen_by_draft.hello.role, Role::kTarget);
  EXPECT_EQ(seen_by_draft.hello.incarnation, target.link().incarnation());
  EXPECT_NE(target.link().incarnation(), 0u);
  EXPECT_EQ(draft.link().stats().handshakes, 1u);
}

TEST(HandshakeTest, MessagesOfEveryKindArrive) {
  Service draft(Listening());
  Service target(ConnectingTo(draft.link().listen_address()));
  ASSERT_TRUE(draft.WaitForUps(1) && target.WaitForUps(1));
  const PeerId to_draft = target.ups()[0].peer;
  const PeerId to_target = draft.ups()[0].peer;

  schemas::DraftRequest request;
  request.sequence = 9;
  request.append_tokens = std::vector<base::TokenId>(5000, 3);
  ASSERT_TRUE(target.link().Send(to_draft, request).ok());
  ASSERT_TRUE(draft.WaitForMessages(1));
  const auto received = draft.TakeMessages();
  EXPECT_EQ(received[0].first, to_target);
  const auto* arrived = std::get_if<schemas::DraftRequest>(&received[0].second);
  ASSERT_NE(arrived, nullptr);
  EXPECT_EQ(arrived->sequence, 9u);
  EXPECT_EQ(arrived->append_tokens, request.append_tokens);

  ASSERT_TRUE(draft.link().Send(to_target, schemas::Drain{}).ok());
  ASSERT_TRUE(draft.link().Send(to_target, schemas::DraftReply{}).ok());
  ASSERT_TRUE(draft.link().Send(to_target, schemas::EndSession{}).ok());
  ASSERT_TRUE(draft.link().Send(to_target, schemas::Submit{}).ok());
  ASSERT_TRUE(draft.link().Send(to_target, schemas::TokensBatch{}).ok());
  ASSERT_TRUE(draft.link().Send(to_target, schemas::Cancel{}).ok());
  ASSERT_TRUE(target.WaitForMessages(6));
  std::set<size_t> kinds;
  for (const auto& [peer, message] : target.TakeMessages()) kinds.insert(message.index());
  EXPECT_THAT(kinds, SizeIs(6));
}

TEST(HandshakeTest, RefusedHelloClosesAndCounts) {
  LinkOptions strict = Listening();
  strict.accept = [](const schemas::Hello& hello) {
    if (hello.vocabulary == 100) return absl::OkStatus();
    return absl::FailedPreconditionError("vocabulary differs");
  };
  Service draft(strict);
  LinkOptions wrong = ConnectingTo(draft.link().listen_address());
  wrong.hello.vocabulary = 99;
  Service target(wrong);
  ASSERT_TRUE(Eventually([&] { return draft.link().stats().refused_hellos >= 2; }))
      << "the connecting side keeps trying";
  EXPECT_THAT(draft.ups(), SizeIs(0));
  EXPECT_THAT(draft.downs(), SizeIs(0));

  LinkOptions right = ConnectingTo(draft.link().listen_address());
  right.hello.vocabulary = 100;
  Service other(right);
  EXPECT_TRUE(draft.WaitForUps(1));
}

// A peer that is a bare fabric, so that it can send what a link never would.
class BarePeerTest : public ::testing::Test {
 protected:
  explicit BarePeerTest(LinkOptions options = Listening()) : service_(std::move(options)) {
    peer_ = node_.fabric().Connect(service_.link().listen_address()).value();
    EXPECT_TRUE(node_.WaitForOpen(1));
  }
  template <typename M>
  void Send(const M& message) {
    SendRaw(static_cast<uint16_t>(schemas::kTypeOf<M>), schemas::Encode(message));
  }
  void SendRaw(uint16_t type, std::vector<uint8_t> payload) {
    ASSERT_TRUE(node_.fabric().Send(peer_, type, std::move(payload)).ok());
  }
  void ExpectClosedAsMalformed(size_t ups) {
    ASSERT_TRUE(node_.WaitForClose(peer_));
    EXPECT_EQ(service_.link().stats().malformed, 1u);
    EXPECT_TRUE(service_.WaitForDowns(ups));
    EXPECT_THAT(service_.ups(), SizeIs(ups));
    EXPECT_THAT(service_.downs(), SizeIs(ups));
  }

  Service service_;
  Node node_;
  PeerId peer_ = 0;
};

TEST_F(BarePeerTest, GetsAHelloAtOnce) {
  ASSERT_TRUE(node_.WaitForFrames(1));
  const auto frames = node_.TakeFrames();
  EXPECT_EQ(frames[0].second.type, static_cast<uint16_t>(MessageType::kHello));
  EXPECT_TRUE(schemas::Decode<schemas::Hello>(frames[0].second.payload).ok());
}

TEST_F(BarePeerTest, OtherProtocolVersionIsRefused) {
  schemas::Hello hello;
  hello.protocol = schemas::kProtocolVersion + 1;
  Send(hello);
  ASSERT_TRUE(node_.WaitForClose(peer_));
  EXPECT_EQ(service_.link().stats().refused_hellos, 1u);
  EXPECT_THAT(service_.ups(), SizeIs(0));
}

TEST_F(BarePeerTest, MalformedHello) {
  SendRaw(static_cast<uint16_t>(MessageType::kHello), {1, 2, 3});
  ExpectClosedAsMalformed(0);
}

TEST_F(BarePeerTest, SecondHello) {
  Send(schemas::Hello{});
  Send(schemas::Hello{});
  ExpectClosedAsMalformed(1);
}

TEST_F(BarePeerTest, MalformedMessage) {
  Send(schemas::Hello{});
  SendRaw(static_cast<uint16_t>(MessageType::kDraftReply), std::vector<uint8_t>(100, 0xFF));
  ExpectClosedAsMalformed(1);
  EXPECT_EQ(service_.downs()[0].second.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(service_.TakeMessages(), SizeIs(0));
}

TEST_F(BarePeerTest, UnknownMessageType) {
  Send(schemas::Hello{});
  SendRaw(999, {});
  ExpectClosedAsMalformed(1);
  EXPECT_THAT(std::string(service_.downs()[0].second.message()), HasSubstr("999"));
}

TEST_F(BarePeerTest, MessagesThatOvertakeTheHelloWaitForIt) {
  schemas::EndSession end;
  end.sequence = 4;
  Send(end);
  Send(schemas::Hello{});
  ASSERT_TRUE(service_.WaitForMessages(1));
  const auto messages = service_.TakeMessages();
  EXPECT_EQ(std::get<schemas::EndSession>(messages[0].second).sequence, 4u);
  EXPECT_THAT(service_.ups(), SizeIs(1));
}

TEST_F(BarePeerTest, EndlessMessagesWithoutHello) {
  for (int i = 0; i < 100; ++i) (void)node_.fabric().Send(peer_, 12, {});
  ASSERT_TRUE(node_.WaitForClose(peer_));
  EXPECT_EQ(service_.link().stats().malformed, 1u);
}

class HelloTimeoutTest : public BarePeerTest {
 protected:
  static LinkOptions Impatient() {
    LinkOptions options = Listening();
    options.handshake_timeout = 50 * base::kMillisecond;
    return options;
  }
  HelloTimeoutTest() : BarePeerTest(Impatient()) {}
};

TEST_F(HelloTimeoutTest, NoHelloInTime) {
  ASSERT_TRUE(node_.WaitForClose(peer_));
  EXPECT_THAT(service_.ups(), SizeIs(0));
  EXPECT_THAT(service_.downs(), SizeIs(0));
}

TEST(KeepAliveTest, StoppedProcessIsClosedByItsSilence) {
  LinkOptions options = Listening(Role::kTarget);
  options.fabric.silence_timeout = 500 * base::kMillisecond;
  Service target(options);
  ChildProcess draft({SPECFABRIC_LINK_PROCESS, target.link().listen_address()});
  ASSERT_TRUE(target.WaitForUps(1));
  draft.Signal(SIGSTOP);
  ASSERT_TRUE(target.WaitForDowns(1));
  EXPECT_EQ(target.downs()[0].second.code(), absl::StatusCode::kDeadlineExceeded);
  // Continued, it finds its connection closed and makes a new one.
  draft.Signal(SIGCONT);
  EXPECT_TRUE(target.WaitForUps(2));
}

TEST(CountersTest, ConnectionsShowTheirPeersWiresAndBytes) {
  Service draft(Listening());
  Service target(ConnectingTo(draft.link().listen_address()));
  ASSERT_TRUE(draft.WaitForUps(1) && target.WaitForUps(1));
  const metrics::FabricCounters up = ReadCounters(draft.link());
  EXPECT_EQ(up.opened, 1u);
  EXPECT_EQ(up.handshakes, 1u);
  EXPECT_GE(up.bytes_copied, 1u) << "the Hello";
  ASSERT_EQ(up.peers.size(), 1u);
  EXPECT_EQ(up.peers[0].role, "target");
  EXPECT_FALSE(up.peers[0].wire.empty());
  EXPECT_FALSE(up.peers[0].peer.empty());
  EXPECT_EQ(up.peers[0].bytes_received, up.bytes_received) << "the Hello";
  EXPECT_GT(up.peers[0].bytes_received, 0u);
  target.Destroy();
  ASSERT_TRUE(draft.WaitForDowns(1));
  EXPECT_TRUE(ReadCounters(draft.link()).peers.empty());
}

TEST(ReconnectTest, ServerThatStartsLateIsFound) {
  std::string address;
  {
    Service probe(Listening());
    address = probe.link().listen_address();
  }
  Service target(ConnectingTo(address));
  ASSERT_TRUE(Eventually([&] { return target.link().fabric_stats().connect_failures >= 2; }));
  Service draft(Listening(Role::kDraft, address));
  EXPECT_TRUE(target.WaitForUps(1));
  EXPECT_EQ(target.link().stats().reconnects, 0u);
}

TEST(ReconnectTest, RestartedServerIsFoundWithItsNewIncarnation) {
  auto draft = std::make_unique<Service>(Listening());
  const std::string address = draft->link().listen_address();
  const uint64_t first = draft->link().incarnation();
  Service target(ConnectingTo(address));
  ASSERT_TRUE(target.WaitForUps(1));
  draft.reset();
  ASSERT_TRUE(target.WaitForDowns(1));
  draft = std::make_unique<Service>(Listening(Role::kDraft, address));
  ASSERT_TRUE(target.WaitForUps(2));
  EXPECT_EQ(target.ups()[0].hello.incarnation, first);
  EXPECT_NE(target.ups()[1].hello.incarnation, first);
  EXPECT_NE(target.ups()[1].peer, target.ups()[0].peer);
  EXPECT_EQ(target.link().stats().reconnects, 1u);
}

TEST(ReconnectTest, KilledProcessesAreReplaced) {
  Service target(Listening(Role::kTarget));
  for (size_t life = 1; life <= 5; ++life) {
    ChildProcess draft({SPECFABRIC_LINK_PROCESS, target.link().listen_address()});
    ASSERT_TRUE(target.WaitForUps(life));
    draft.Kill();
    ASSERT_TRUE(target.WaitForDowns(life));
  }
}

TEST(ReconnectTest, ClosedPeerComesBackAfterTheBackoff) {
  Service draft(Listening());
  Service target(ConnectingTo(draft.link().listen_address()));
  ASSERT_TRUE(target.WaitForUps(1));
  target.link().Close(target.ups()[0].peer);
  ASSERT_TRUE(target.WaitForUps(2));
  EXPECT_THAT(target.downs(), SizeIs(1));
  EXPECT_TRUE(target.downs()[0].second.ok());
}

TEST(ReconnectTest, AnAddressGivenTwiceIsOnePeer) {
  Service draft(Listening());
  LinkOptions options = ConnectingTo(draft.link().listen_address());
  options.connect.push_back(draft.link().listen_address());
  Service target(options);
  ASSERT_TRUE(draft.WaitForUps(1) && target.WaitForUps(1));
  EXPECT_EQ(target.link().stats().addresses, 1u);
}

TEST(LifetimeTest, EveryUpHasItsDownWhenTheLinkEnds) {
  Service draft(Listening());
  Service target(ConnectingTo(draft.link().listen_address()));
  ASSERT_TRUE(draft.WaitForUps(1) && target.WaitForUps(1));
  target.Destroy();
  EXPECT_THAT(target.downs(), SizeIs(1));
  EXPECT_TRUE(draft.WaitForDowns(1));
  draft.Destroy();
  EXPECT_THAT(draft.downs(), SizeIs(1));
}

TEST(LifetimeTest, NoCallbackRunsBeforeStart) {
  std::atomic<bool> started = false, early = false;
  std::atomic<int> ups = 0;
  LinkHandler handler;
  handler.on_up = [&](PeerId, const schemas::Hello&, const std::string&) {
    if (!started) early = true;
    ++ups;
  };
  auto draft = Link::Create(Listening(), std::move(handler));
  ASSERT_TRUE(draft.ok()) << draft.status();
  Service target(ConnectingTo((*draft)->listen_address()));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_THAT(target.ups(), SizeIs(0));
  EXPECT_EQ((*draft)->stats().handshakes, 0u);
  started = true;
  ASSERT_TRUE((*draft)->Start().ok());
  EXPECT_TRUE(target.WaitForUps(1));
  EXPECT_TRUE(Eventually([&] { return ups == 1; }));
  EXPECT_FALSE(early);
  EXPECT_EQ((*draft)->Start().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(LifetimeTest, PortInUseIsReported) {
  Service first(Listening());
  const auto second =
      Link::Create(Listening(Role::kDraft, first.link().listen_address()), LinkHandler());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
}

}  // namespace
}  // namespace specfabric::link
