// What a fabric does when the process at the other end is killed, stopped or restarted. CMake runs
// it twice: on the wires UCX picks between processes of one machine (shared memory) and on TCP.

#include <signal.h>

#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/child_process.h"
#include "tests/transport/node.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

FabricOptions Options() {
  FabricOptions options = LoopbackOptions();
  options.max_outstanding_sends = 64;
  return options;
}

std::vector<std::string> EchoAt(const std::string& address) {
  return {SPECFABRIC_PEER_PROCESS, "echo", address};
}

// A client whose server is another process.
class ProcessTest : public ::testing::Test {
 protected:
  // Tries again when the fabric restarts UCX, as it may after a peer was killed.
  PeerId ConnectTo(const std::string& address) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      const PeerId peer = client_.fabric().Connect(address).value();
      if (client_.WaitForOutcome(peer)) return peer;
    }
    ADD_FAILURE() << "no connection to " << address;
    return 0;
  }
  // True once UCX has released everything that closed connections used.
  bool WaitForRelease() {
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    while (client_.fabric().stats().releasing != 0) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  void ExpectEchoFrom(PeerId peer) {
    client_.TakeFrames();
    ASSERT_TRUE(client_.fabric().Send(peer, 1, std::vector<uint8_t>(300'000, 42)).ok());
    ASSERT_TRUE(client_.WaitForFrames(1));
    EXPECT_THAT(client_.TakeFrames()[0].second.payload, SizeIs(300'000));
  }
  void ExpectLost(PeerId peer) {
    ASSERT_TRUE(client_.WaitForClose(peer));
    EXPECT_FALSE(client_.closed(peer)[0].ok());
    EXPECT_TRUE(WaitForRelease());
    EXPECT_THAT(client_.closed(peer), SizeIs(1));
  }

  Node client_{Options()};
};

TEST_F(ProcessTest, UsesTheExpectedWire) {
  ChildProcess server(EchoAt(AnyPort()));
  const PeerId peer = ConnectTo(server.ReadLine());
  EXPECT_THAT(client_.fabric().Transport(peer), HasSubstr(TestWire()));
  ExpectEchoFrom(peer);
}

TEST_F(ProcessTest, KilledWhileIdle) {
  ChildProcess server(EchoAt(AnyPort()));
  const PeerId peer = ConnectTo(server.ReadLine());
  server.Kill();
  ExpectLost(peer);
}

TEST_F(ProcessTest, KilledWhileWeSend) {
  for (int life = 1; life <= 3; ++life) {
    ChildProcess server(EchoAt(AnyPort()));
    const PeerId peer = ConnectTo(server.ReadLine());
    client_.TakeFrames();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(client_.fabric().Send(peer, 1, std::vector<uint8_t>(2 << 20)).ok());
    }
    ASSERT_TRUE(client_.WaitForFrames(1));
    server.Kill();
    ExpectLost(peer);
  }
}

TEST_F(ProcessTest, KilledWhileItSends) {
  const std::string address = client_.fabric().Listen(AnyPort()).value();
  for (int life = 1; life <= 3; ++life) {
    ChildProcess sender({SPECFABRIC_PEER_PROCESS, "flood", address});
    client_.TakeFrames();
    ASSERT_TRUE(client_.WaitForFrames(5));
    const PeerId peer = client_.opened().back().peer;
    sender.Kill();
    ExpectLost(peer);
  }
}

// A stopped process keeps its sockets, so without a silence_timeout the caller must close it. The
// fabric must bound its queue and close the peer when told to.
TEST_F(ProcessTest, StoppedPeerCanBeClosed) {
  ChildProcess server(EchoAt(AnyPort()));
  const PeerId peer = ConnectTo(server.ReadLine());
  ExpectEchoFrom(peer);
  server.Signal(SIGSTOP);
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = client_.fabric().Send(peer, 1, std::vector<uint8_t>(1 << 20));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  client_.fabric().Close(peer);
  ASSERT_TRUE(client_.WaitForClose(peer));
  EXPECT_TRUE(WaitForRelease());
}

TEST_F(ProcessTest, StoppedPeerDoesNotDelayDestruction) {
  ChildProcess server(EchoAt(AnyPort()));
  const PeerId peer = ConnectTo(server.ReadLine());
  server.Signal(SIGSTOP);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client_.fabric().Send(peer, 1, std::vector<uint8_t>(1 << 20)).ok());
  }
  client_.Destroy();
  EXPECT_THAT(client_.closed(peer), SizeIs(1));
}

TEST_F(ProcessTest, OnePeersDeathDoesNotAffectOthers) {
  ChildProcess first(EchoAt(AnyPort()));
  ChildProcess second(EchoAt(AnyPort()));
  const PeerId to_first = ConnectTo(first.ReadLine());
  const PeerId to_second = ConnectTo(second.ReadLine());
  first.Kill();
  ExpectLost(to_first);
  ExpectEchoFrom(to_second);
}

TEST_F(ProcessTest, RestartedPeerIsReachedOnItsOldPort) {
  std::string address = AnyPort();
  for (int life = 1; life <= 4; ++life) {
    ChildProcess server(EchoAt(address));
    address = server.ReadLine();
    const PeerId peer = ConnectTo(address);
    ExpectEchoFrom(peer);
    server.Kill();
    ExpectLost(peer);
  }
}

}  // namespace
}  // namespace specfabric::transport
