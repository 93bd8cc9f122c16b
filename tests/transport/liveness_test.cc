// Keep-alive: stopped peers, peers that do not read, and healthy ones that must stay open. CMake
// runs it on the wires UCX picks for one machine and on TCP.

#include <signal.h>

#include <chrono>
#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/child_process.h"
#include "tests/transport/node.h"
#include "tests/transport/process_info.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr base::Nanos kSilence = 400 * base::kMillisecond;

FabricOptions WithSilence(base::Nanos timeout) {
  FabricOptions options = LoopbackOptions();
  options.silence_timeout = timeout;
  return options;
}

std::vector<std::string> Peer(const std::string& mode, const std::string& address,
                              base::Nanos silence) {
  return {SPECFABRIC_PEER_PROCESS, mode, address, std::to_string(silence / base::kMillisecond)};
}

void ExpectSilent(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("silent for"));
}

void SleepTimeouts(double count) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(count * kSilence)));
}

TEST(LivenessTest, AStoppedPeerIsClosed) {
  Node client(WithSilence(kSilence));
  ChildProcess server(Peer("echo", AnyPort(), 0));
  const std::string address = server.ReadLine();
  const PeerId peer = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.WaitForOpen(1));
  server.Stop();
  ASSERT_TRUE(client.WaitForClose(peer));
  ExpectSilent(client.closed(peer)[0]);
  EXPECT_THAT(std::string(client.closed(peer)[0].message()), HasSubstr(address));
  EXPECT_EQ(client.fabric().stats().silent_peers, 1u);
  EXPECT_EQ(client.fabric().stats().closed, 1u);
  EXPECT_TRUE(Eventually([&] { return client.fabric().stats().releasing == 0; }));
  EXPECT_THAT(client.closed(peer), SizeIs(1));
}

// Outstanding sends are released, and sending to the peer does not delay its closing.
TEST(LivenessTest, AStoppedPeerIsClosedWhileWeSend) {
  FabricOptions options = WithSilence(kSilence);
  options.max_outstanding_sends = 16;
  Node client(options);
  ChildProcess server(Peer("echo", AnyPort(), 0));
  const PeerId peer = client.fabric().Connect(server.ReadLine()).value();
  ASSERT_TRUE(client.WaitForOpen(1));
  server.Stop();
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  absl::Status sent;
  while (!absl::IsNotFound(sent) && std::chrono::steady_clock::now() < deadline) {
    sent = client.fabric().Send(peer, 1, std::vector<uint8_t>(100'000));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(absl::IsNotFound(sent)) << sent;
  ASSERT_TRUE(client.WaitForClose(peer));
  ExpectSilent(client.closed(peer)[0]);
  EXPECT_TRUE(Eventually([&] { return client.fabric().stats().releasing == 0; }));
}

TEST(LivenessTest, AnIdlePairStaysOpen) {
  Node server(WithSilence(kSilence), /*echo=*/true);
  Node client(WithSilence(kSilence));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const PeerId peer = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.WaitForOpen(1) && server.WaitForOpen(1));
  SleepTimeouts(4);
  ASSERT_TRUE(client.fabric().Send(peer, 1, {1}).ok());
  ASSERT_TRUE(client.WaitForFrames(1));
  for (Node* node : {&server, &client}) {
    const FabricStats stats = node->fabric().stats();
    EXPECT_EQ(stats.silent_peers, 0u);
    EXPECT_EQ(stats.closed, 0u);
    EXPECT_EQ(stats.frames_received, 1u) << "pings are not counted as frames";
  }
}

// One side with a silence_timeout is enough: the other only answers.
TEST(LivenessTest, PeerWithoutATimeoutAnswersPings) {
  Node server(WithSilence(0));
  Node client(WithSilence(kSilence));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  ASSERT_TRUE(client.fabric().Connect(address).ok());
  ASSERT_TRUE(client.WaitForOpen(1));
  SleepTimeouts(4);
  EXPECT_EQ(client.fabric().stats().closed, 0u);
  EXPECT_EQ(server.fabric().stats().closed, 0u);
}

TEST(LivenessTest, WithoutATimeoutSilentPeersStayOpen) {
  Node client(WithSilence(0));
  ChildProcess server(Peer("echo", AnyPort(), 0));
  const PeerId peer = client.fabric().Connect(server.ReadLine()).value();
  ASSERT_TRUE(client.WaitForOpen(1));
  server.Stop();
  SleepTimeouts(3);
  server.Signal(SIGCONT);
  ASSERT_TRUE(client.fabric().Send(peer, 1, {1}).ok());
  EXPECT_TRUE(client.WaitForFrames(1));
  EXPECT_EQ(client.fabric().stats().closed, 0u);
}

TEST(LivenessTest, ContinuedPeerSeesTheCloseAndReconnects) {
  Node server(WithSilence(kSilence), /*echo=*/true);
  const std::string address = server.fabric().Listen(AnyPort()).value();
  ChildProcess caller(Peer("caller", address, 5 * base::kSecond));
  ASSERT_EQ(caller.ReadLine(), "open");
  ASSERT_TRUE(server.WaitForOpen(1));
  for (size_t life = 1; life <= 3; ++life) {
    const PeerId peer = server.opened().back().peer;
    caller.Stop();
    ASSERT_TRUE(server.WaitForClose(peer));
    ExpectSilent(server.closed(peer)[0]);
    caller.Signal(SIGCONT);
    EXPECT_THAT(caller.ReadLine(), StartsWith("closed: "));
    ASSERT_EQ(caller.ReadLine(), "open");
    ASSERT_TRUE(server.WaitForOpen(life + 1));
    // These frames are the new connection's: both sides echo them for ever.
    server.TakeFrames();
    ASSERT_TRUE(server.fabric().Send(server.opened().back().peer, 1, {1, 2}).ok());
    ASSERT_TRUE(server.WaitForFrames(1));
    EXPECT_EQ(server.fabric().stats().silent_peers, life);
  }
}

// A process that was stopped itself has not read what its peers sent meanwhile; it must not take
// them for silent.
TEST(LivenessTest, BeingStoppedDoesNotCloseHealthyPeers) {
  Node server(WithSilence(0));
  const std::string address = server.fabric().Listen(AnyPort()).value();
  ChildProcess watcher(Peer("caller", address, kSilence));
  ASSERT_EQ(watcher.ReadLine(), "open");
  ASSERT_TRUE(server.WaitForOpen(1));
  for (int i = 0; i < 3; ++i) {
    watcher.Stop();
    SleepTimeouts(2.5);
    watcher.Signal(SIGCONT);
    SleepTimeouts(1.5);
    EXPECT_EQ(server.fabric().stats().closed, 0u) << i;
  }
  EXPECT_THAT(server.opened(), SizeIs(1));
  server.TakeFrames();
  ASSERT_TRUE(server.fabric().Send(server.opened()[0].peer, 1, {1}).ok());
  EXPECT_TRUE(server.WaitForFrames(1));
}

// A peer whose handler never returns: it is connected, but does not read.
class DeafPeer {
 public:
  DeafPeer() {
    FabricHandler handler;
    handler.on_frame = [this](PeerId, const Frame&) { heard_.wait(); };
    handler.on_close = [this](PeerId, const absl::Status&) { closed_.set_value(); };
    fabric_ = Fabric::Create(WithSilence(0), std::move(handler)).value();
    address_ = fabric_->Listen(AnyPort()).value();
  }
  ~DeafPeer() { Hear(); }
  const std::string& address() const { return address_; }
  // Its handler returns from now on.
  void Hear() {
    if (!std::exchange(hears_, true)) hear_.set_value();
  }
  bool WaitForClose() {
    return closed_.get_future().wait_for(kTestTimeout) == std::future_status::ready;
  }

 private:
  std::promise<void> hear_;
  std::shared_future<void> heard_{hear_.get_future()};
  bool hears_ = false;
  std::promise<void> closed_;
  std::string address_;
  std::unique_ptr<Fabric> fabric_;  // last: destroyed before what its callbacks use
};

class NonReadingPeerTest : public ::testing::TestWithParam<size_t> {};

TEST_P(NonReadingPeerTest, CostsBoundedMemoryAndIsClosed) {
  const size_t bytes = GetParam();
  FabricOptions options = WithSilence(5 * kSilence);
  options.max_outstanding_sends = 256;
  options.max_outstanding_bytes = 8 << 20;
  DeafPeer deaf;
  Node client(options);
  const PeerId peer = client.fabric().Connect(deaf.address()).value();
  ASSERT_TRUE(client.WaitForOpen(1));
  ASSERT_TRUE(client.fabric().Send(peer, 1, {1}).ok());
  const size_t before = ProcessInfo::Of(getpid()).resident_bytes;
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  size_t most = before;
  bool pressed = false;
  absl::Status sent;
  while (!absl::IsNotFound(sent) && std::chrono::steady_clock::now() < deadline) {
    sent = client.fabric().Send(peer, 1, std::vector<uint8_t>(bytes, 1));
    if (absl::IsResourceExhausted(sent)) {
      pressed = true;
      most = std::max(most, ProcessInfo::Of(getpid()).resident_bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_TRUE(pressed);
  EXPECT_GT(client.fabric().stats().back_pressure, 0u);
  // Both peers are in this process: our queue of 8 MiB, and the wire's buffers of both.
  if (kMemoryIsMeasurable) {
    EXPECT_LT(most - before, size_t{48} << 20);
  }
  ASSERT_TRUE(client.WaitForClose(peer));
  ExpectSilent(client.closed(peer)[0]);
  EXPECT_TRUE(Eventually([&] { return client.fabric().stats().releasing == 0; }));
  deaf.Hear();
  EXPECT_TRUE(deaf.WaitForClose());
}

INSTANTIATE_TEST_SUITE_P(SmallEagerAndRendezvous, NonReadingPeerTest,
                         ::testing::Values(100, 4'000, 1u << 20));

}  // namespace
}  // namespace specfabric::transport
