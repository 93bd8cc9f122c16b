// Fabrics of one process: connections, frames of all sizes, limits, closing.

#include "transport/fabric.h"

#include <dirent.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/log_capture.h"
#include "tests/base/no_descriptors.h"
#include "tests/transport/node.h"
#include "tests/transport/raw_socket.h"
#include "transport/listen_socket.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<uint8_t> RandomPayload(size_t bytes, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<uint8_t> payload(bytes);
  for (size_t i = 0; i < bytes; i += 4096) payload[i] = static_cast<uint8_t>(rng());
  std::iota(payload.begin(), payload.begin() + std::min<size_t>(bytes, 4096),
            static_cast<uint8_t>(rng()));
  if (bytes > 0) payload.back() = static_cast<uint8_t>(rng());
  return payload;
}

// A connected pair: `client` connected, `server` accepted.
struct Pair {
  explicit Pair(const FabricOptions& options = LoopbackOptions(), bool echo = true)
      : server(options, echo), client(options) {
    address = server.fabric().Listen(AnyPort()).value();
    to_server = client.fabric().Connect(address).value();
    if (!client.WaitForOpen(1) || !server.WaitForOpen(1)) return;
    to_client = server.opened()[0].peer;
  }
  bool ok() const { return to_client != 0; }

  Node server;
  Node client;
  std::string address;
  PeerId to_server = 0;
  PeerId to_client = 0;
};

TEST(FabricTest, ConnectsAndNamesBothEnds) {
  Pair pair;
  ASSERT_TRUE(pair.ok());
  const auto client_view = pair.client.opened();
  ASSERT_THAT(client_view, SizeIs(1));
  EXPECT_EQ(client_view[0].peer, pair.to_server);
  EXPECT_EQ(client_view[0].address, pair.address);
  EXPECT_FALSE(client_view[0].inbound);
  const auto server_view = pair.server.opened();
  EXPECT_TRUE(server_view[0].inbound);
  EXPECT_THAT(server_view[0].address, StartsWith(TestNetwork()));
  EXPECT_EQ(pair.client.fabric().stats().opened, 1u);
  EXPECT_THAT(pair.client.fabric().Transport(pair.to_server), HasSubstr("/"));
  EXPECT_EQ(pair.client.fabric().Transport(999), "");
}

TEST(FabricTest, FramesOfEverySizeComeBackUnchanged) {
  Pair pair;
  ASSERT_TRUE(pair.ok());
  std::vector<size_t> sizes = {0, 1, 7, 8, 100, 1000};
  for (size_t size = 1024; size <= (8u << 20); size *= 2) {
    sizes.insert(sizes.end(), {size - 1, size, size + 1});
  }
  uint16_t type = 0;
  for (size_t size : sizes) {
    const std::vector<uint8_t> payload = RandomPayload(size, size);
    ASSERT_TRUE(pair.client.fabric().Send(pair.to_server, ++type, payload).ok());
    ASSERT_TRUE(pair.client.WaitForFrames(1)) << size;
    const auto frames = pair.client.TakeFrames();
    ASSERT_THAT(frames, SizeIs(1));
    EXPECT_EQ(frames[0].first, pair.to_server);
    EXPECT_EQ(frames[0].second.type, type);
    EXPECT_TRUE(frames[0].second.payload == payload) << size;
  }
  const FabricStats stats = pair.client.fabric().stats();
  EXPECT_EQ(stats.frames_received, sizes.size());
  EXPECT_EQ(stats.bytes_received, std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
  EXPECT_EQ(stats.refused_frames, 0u);
}

TEST(FabricTest, FramesSentBeforeTheConnectionIsUpArrive) {
  Node server;
  Node client;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const PeerId peer = client.fabric().Connect(address).value();
  for (size_t size : {size_t{0}, size_t{100}, size_t{20'000}, size_t{2'000'000}}) {
    ASSERT_TRUE(client.fabric().Send(peer, 1, RandomPayload(size, 1)).ok());
  }
  EXPECT_TRUE(server.WaitForFrames(4));
}

TEST(FabricTest, FlushedFramesArriveAfterTheFabricEnds) {
  Pair pair(LoopbackOptions(), false);
  ASSERT_TRUE(pair.ok());
  constexpr int kFrames = 200;
  for (int i = 0; i < kFrames; ++i) {
    const size_t size = i % 10 == 0 ? 300'000 : 500;
    ASSERT_TRUE(pair.client.fabric().Send(pair.to_server, 1, RandomPayload(size, i)).ok());
  }
  EXPECT_TRUE(pair.client.fabric().Flush(60 * base::kSecond));
  pair.client.Destroy();
  EXPECT_TRUE(pair.server.WaitForFrames(kFrames));
}

TEST(FabricTest, FlushDoesNotWaitForClosedPeers) {
  Pair pair;
  ASSERT_TRUE(pair.ok());
  pair.server.Destroy();
  ASSERT_TRUE(pair.client.WaitForClose(pair.to_server));
  EXPECT_TRUE(pair.client.fabric().Flush(60 * base::kSecond));
}

TEST(FabricTest, ConcurrentSendersLoseNothing) {
  constexpr int kThreads = 4, kFrames = 300;
  FabricOptions options = LoopbackOptions();
  options.max_outstanding_sends = kThreads * kFrames;
  Pair pair(options);
  ASSERT_TRUE(pair.ok());
  std::vector<std::thread> senders;
  for (int t = 0; t < kThreads; ++t) {
    senders.emplace_back([&pair, t] {
      for (int i = 0; i < kFrames; ++i) {
        const size_t size = 4 + (i % 10 == 0 ? 100'000 : i);
        std::vector<uint8_t> payload(size, static_cast<uint8_t>(t));
        payload[1] = static_cast<uint8_t>(i);
        payload[2] = static_cast<uint8_t>(i >> 8);
        EXPECT_TRUE(pair.client.fabric().Send(pair.to_server, t, std::move(payload)).ok());
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  ASSERT_TRUE(pair.client.WaitForFrames(kThreads * kFrames))
      << "lost: "
      << (pair.client.closed(pair.to_server).empty() ? absl::OkStatus()
                                                     : pair.client.closed(pair.to_server)[0]);
  std::vector<std::vector<bool>> seen(kThreads, std::vector<bool>(kFrames, false));
  for (const auto& [peer, frame] : pair.client.TakeFrames()) {
    const int i = frame.payload[1] | (frame.payload[2] << 8);
    ASSERT_LT(frame.type, kThreads);
    ASSERT_LT(i, kFrames);
    EXPECT_FALSE(seen[frame.type][i]);
    seen[frame.type][i] = true;
    EXPECT_EQ(frame.payload.back(), frame.type);
    EXPECT_EQ(frame.payload.size(), 4u + (i % 10 == 0 ? 100'000 : i));
  }
}

TEST(FabricTest, ManyPeersOfOneServer) {
  Node server(LoopbackOptions(), /*echo=*/true);
  const std::string address = server.fabric().Listen(AnyPort()).value();
  std::vector<std::unique_ptr<Node>> clients;
  for (int c = 0; c < 4; ++c) {
    clients.push_back(std::make_unique<Node>());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(clients[c]->fabric().Connect(address).ok());
  }
  for (auto& client : clients) {
    ASSERT_TRUE(client->WaitForOpen(8));
    for (const auto& opened : client->opened()) {
      ASSERT_TRUE(client->fabric().Send(opened.peer, 1, RandomPayload(50'000, opened.peer)).ok());
    }
  }
  for (auto& client : clients) {
    ASSERT_TRUE(client->WaitForFrames(8));
    for (const auto& [peer, frame] : client->TakeFrames()) {
      EXPECT_TRUE(frame.payload == RandomPayload(50'000, peer)) << "frame of another connection";
    }
  }
  EXPECT_EQ(server.opened().size(), 32u);
}

TEST(FabricTest, ServerBeyondItsPeerLimitRejects) {
  FabricOptions options = LoopbackOptions();
  options.max_peers = 1;
  Node server(options);
  Node client;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  ASSERT_TRUE(client.fabric().Connect(address).ok());
  ASSERT_TRUE(client.WaitForOpen(1));
  const PeerId second = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.WaitForClose(second));
  EXPECT_FALSE(client.closed(second)[0].ok());
  EXPECT_TRUE(server.WaitForOpen(1));
  EXPECT_EQ(server.opened().size(), 1u);
}

TEST(FabricTest, AFabricMayConnectToItself) {
  Node node;
  const std::string address = node.fabric().Listen(AnyPort()).value();
  const PeerId peer = node.fabric().Connect(address).value();
  ASSERT_TRUE(node.WaitForOpen(2));
  ASSERT_TRUE(node.fabric().Send(peer, 3, RandomPayload(1'000'000, 5)).ok());
  ASSERT_TRUE(node.WaitForFrames(1));
  const auto frames = node.TakeFrames();
  EXPECT_NE(frames[0].first, peer);
  EXPECT_TRUE(frames[0].second.payload == RandomPayload(1'000'000, 5));
}

// Errors of the caller.

TEST(FabricErrorTest, BadAddresses) {
  Node node;
  for (const char* bad : {"", "localhost", "127.0.0.1:", ":80", "127.0.0.1:70000", "127.0.0.1:x",
                          "::1:80", "127.0.0.1:-1"}) {
    EXPECT_EQ(node.fabric().Connect(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
    EXPECT_EQ(node.fabric().Listen(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(FabricErrorTest, PortInUse) {
  Node first;
  Node second;
  const std::string address = first.fabric().Listen(AnyPort()).value();
  const absl::Status status = second.fabric().Listen(address).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_EQ(first.fabric().Listen(AnyPort()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A socket that listens before its fabric exists, as in a process that loads a model.
TEST(ListenSocketTest, EarlyConnectionsAreAcceptedOnceTheFabricListens) {
  auto socket = ListenSocket::Open(AnyPort());
  ASSERT_TRUE(socket.ok()) << socket.status();
  const std::string address = socket->address();
  EXPECT_TRUE(absl::IsAlreadyExists(ListenSocket::Open(address).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(ListenSocket::Reserve(address).status()));
  Node client;
  const PeerId early = client.fabric().Connect(address).value();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(client.opened().empty());
  Node server;
  EXPECT_EQ(server.fabric().Listen(*std::move(socket)).value(), address);
  EXPECT_TRUE(client.WaitForOutcome(early));
  EXPECT_TRUE(server.WaitForOpen(1));
}

TEST(ListenSocketTest, ConnectionsClosedWhileWaitingAreDropped) {
  constexpr int kImpatient = 8;
  auto socket = ListenSocket::Open(AnyPort());
  ASSERT_TRUE(socket.ok()) << socket.status();
  const std::string address = socket->address();
  {
    FabricOptions impatient = LoopbackOptions();
    impatient.connect_timeout = 50 * base::kMillisecond;
    Node client(impatient);
    for (int i = 0; i < kImpatient; ++i) {
      const PeerId peer = client.fabric().Connect(address).value();
      EXPECT_FALSE(client.WaitForOutcome(peer));
    }
  }
  Node server;
  ASSERT_TRUE(server.fabric().Listen(*std::move(socket)).ok());
  Node client;
  EXPECT_TRUE(client.WaitForOutcome(client.fabric().Connect(address).value()));
  EXPECT_TRUE(server.WaitForOpen(1));
  EXPECT_EQ(server.fabric().stats().opened, 1u);
  EXPECT_EQ(server.fabric().stats().connect_failures, uint64_t{kImpatient});
}

TEST(ListenSocketTest, ReservedPortRefusesClientsAndIsFreeAfterwards) {
  std::string address;
  {
    const auto reserved = ListenSocket::Reserve(AnyPort());
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    address = reserved->address();
    Node client;
    EXPECT_FALSE(client.WaitForOutcome(client.fabric().Connect(address).value()));
  }
  EXPECT_TRUE(ListenSocket::Open(address).ok());
}

TEST(FabricErrorTest, WithoutDescriptorsAcceptingPausesAndIsLoggedOnce) {
  Node server;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  Node client;
  const base::LogCapture log;
  {
    std::array<base::LateClient, 3> waiting;
    const base::NoDescriptors none;
    for (const base::LateClient& one : waiting) ASSERT_TRUE(one.Connect(address));
    EXPECT_LT(base::CpuSecondsOfASecond(), base::kIdleCpuSeconds);
  }
  const PeerId peer = client.fabric().Connect(address).value();
  EXPECT_TRUE(client.WaitForOutcome(peer));
  EXPECT_TRUE(server.WaitForOpen(1));
  EXPECT_EQ(log.Count("cannot accept connections on " + address), 1) << log.text();
  EXPECT_EQ(log.Count("Too many open files"), 1) << log.text();
}

TEST(FabricErrorTest, NobodyListens) {
  std::string address;
  {
    Node gone;
    address = gone.fabric().Listen(AnyPort()).value();
  }
  Node client;
  const PeerId peer = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.WaitForClose(peer));
  EXPECT_EQ(client.closed(peer)[0].code(), absl::StatusCode::kUnavailable)
      << client.closed(peer)[0];
  EXPECT_EQ(client.fabric().stats().connect_failures, 1u);
  EXPECT_EQ(client.fabric().Send(peer, 1, {}).code(), absl::StatusCode::kNotFound);
}

TEST(FabricErrorTest, SilentServerIsClosedAtTheDeadline) {
  const SilentServer silent;
  FabricOptions options = LoopbackOptions();
  options.connect_timeout = 200 * base::kMillisecond;
  options.max_outstanding_sends = 2;
  Node client(options);
  const PeerId peer = client.fabric().Connect(silent.address()).value();
  EXPECT_TRUE(client.fabric().Send(peer, 1, {1}).ok());
  EXPECT_TRUE(client.fabric().Send(peer, 1, {2}).ok());
  EXPECT_EQ(client.fabric().Send(peer, 1, {3}).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(client.WaitForClose(peer));
  EXPECT_EQ(client.closed(peer)[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(FabricErrorTest, SendLimits) {
  FabricOptions options = LoopbackOptions();
  options.max_frame_bytes = 1000;
  Pair pair(options);
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(pair.client.fabric().Send(pair.to_server, 1, std::vector<uint8_t>(1001)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pair.client.fabric().Send(12345, 1, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(pair.client.fabric().Send(pair.to_server, 1, std::vector<uint8_t>(1000)).ok());
  EXPECT_TRUE(pair.client.WaitForFrames(1));
}

// A peer that sends too large a frame is closed before anything is allocated for it.
class OversizedFrameTest : public ::testing::TestWithParam<size_t> {};

TEST_P(OversizedFrameTest, IsRefusedAndThePeerClosed) {
  FabricOptions strict = LoopbackOptions();
  strict.max_frame_bytes = static_cast<uint32_t>(GetParam() - 1);
  Node server(strict);
  Node client;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const PeerId peer = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.WaitForOpen(1) && server.WaitForOpen(1));
  ASSERT_TRUE(client.fabric().Send(peer, 1, std::vector<uint8_t>(GetParam())).ok());
  const PeerId inbound = server.opened()[0].peer;
  ASSERT_TRUE(server.WaitForClose(inbound));
  EXPECT_EQ(server.closed(inbound)[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server.fabric().stats().refused_frames, 1u);
  ASSERT_TRUE(client.WaitForClose(peer));
  EXPECT_THAT(server.TakeFrames(), SizeIs(0));
}

INSTANTIATE_TEST_SUITE_P(SmallEagerAndRendezvous, OversizedFrameTest,
                         ::testing::Values(1000, 20'000, 4u << 20));

// Closing.

TEST(FabricCloseTest, BothSidesAreToldOnce) {
  Pair pair;
  ASSERT_TRUE(pair.ok());
  pair.client.fabric().Close(pair.to_server);
  EXPECT_EQ(pair.client.fabric().Send(pair.to_server, 1, {}).code(), absl::StatusCode::kNotFound);
  pair.client.fabric().Close(pair.to_server);
  ASSERT_TRUE(pair.client.WaitForClose(pair.to_server));
  ASSERT_TRUE(pair.server.WaitForClose(pair.to_client));
  EXPECT_TRUE(pair.client.closed(pair.to_server)[0].ok());
  EXPECT_EQ(pair.server.closed(pair.to_client)[0].code(), absl::StatusCode::kUnavailable);
  pair.server.Destroy();
  pair.client.Destroy();
  EXPECT_THAT(pair.client.closed(pair.to_server), SizeIs(1));
  EXPECT_THAT(pair.server.closed(pair.to_client), SizeIs(1));
}

TEST(FabricCloseTest, WithSendsInFlight) {
  for (int i = 0; i < 5; ++i) {
    Pair pair;
    ASSERT_TRUE(pair.ok());
    for (int k = 0; k < 50; ++k) {
      ASSERT_TRUE(pair.client.fabric().Send(pair.to_server, 1, std::vector<uint8_t>(1 << 20)).ok());
    }
    if (i % 2 == 0) {
      ASSERT_TRUE(pair.server.WaitForFrames(1));
    }
    pair.client.fabric().Close(pair.to_server);
    ASSERT_TRUE(pair.client.WaitForClose(pair.to_server));
    ASSERT_TRUE(pair.server.WaitForClose(pair.to_client));
  }
}

TEST(FabricCloseTest, DestroyedWithSendsInFlight) {
  for (int i = 0; i < 5; ++i) {
    Pair pair;
    ASSERT_TRUE(pair.ok());
    for (int k = 0; k < 20; ++k) {
      ASSERT_TRUE(pair.client.fabric().Send(pair.to_server, 1, std::vector<uint8_t>(1 << 20)).ok());
    }
    if (i % 2 == 0) {
      pair.client.Destroy();
      EXPECT_THAT(pair.client.closed(pair.to_server), SizeIs(1));
      EXPECT_TRUE(pair.server.WaitForClose(pair.to_client));
    } else {
      pair.server.Destroy();
      EXPECT_THAT(pair.server.closed(pair.to_client), SizeIs(1));
      EXPECT_TRUE(pair.client.WaitForClose(pair.to_server));
    }
  }
}

TEST(FabricCloseTest, ListenerRestartsOnItsPort) {
  std::string address = AnyPort();
  Node client;
  for (size_t life = 1; life <= 3; ++life) {
    Node server(LoopbackOptions(), /*echo=*/true);
    const auto bound = server.fabric().Listen(address);
    ASSERT_TRUE(bound.ok()) << bound.status();
    address = *bound;
    const PeerId peer = client.fabric().Connect(address).value();
    ASSERT_TRUE(client.WaitForOpen(life));
    ASSERT_TRUE(client.fabric().Send(peer, 1, {1, 2, 3}).ok());
    ASSERT_TRUE(client.WaitForFrames(life));
    server.Destroy();
    ASSERT_TRUE(client.WaitForClose(peer));
  }
}

size_t OpenFileDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(FabricCloseTest, ConnectionsLeaveNoFileDescriptorsBehind) {
  Node server(LoopbackOptions(), /*echo=*/true);
  Node client;
  const std::string address = server.fabric().Listen(AnyPort()).value();
  constexpr size_t kWarmUp = 20;
  const size_t cycles = TestCycles();
  ASSERT_GT(cycles, kWarmUp);
  size_t before = 0;
  for (size_t i = 1; i <= cycles; ++i) {
    const PeerId peer = client.fabric().Connect(address).value();
    ASSERT_TRUE(client.fabric().Send(peer, 1, {1}).ok());
    ASSERT_TRUE(client.WaitForFrames(1))
        << "connection " << i << ": "
        << (client.closed(peer).empty() ? absl::OkStatus() : client.closed(peer)[0]);
    client.TakeFrames();
    client.fabric().Close(peer);
    ASSERT_TRUE(client.WaitForClose(peer));
    ASSERT_TRUE(server.WaitForCloses(i));
    if (i == kWarmUp) before = OpenFileDescriptors();
  }
  // Closing continues for a short time after on_close.
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (OpenFileDescriptors() > before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LE(OpenFileDescriptors(), before);
  EXPECT_EQ(server.fabric().stats().opened, cycles);
  EXPECT_EQ(server.fabric().stats().closed, cycles);
}

// Random bytes sent to every port that the process listens on: the transport's and UCX's own.
TEST(FabricHostileTest, GarbageOnEveryPortIsSurvived) {
  Node server(LoopbackOptions(), /*echo=*/true);
  const std::string address = server.fabric().Listen(AnyPort()).value();
  const std::vector<uint16_t> ports = OwnListeningPorts();
  ASSERT_FALSE(ports.empty());
  std::mt19937_64 rng(11);
  for (uint16_t port : ports) {
    for (size_t bytes : {1, 7, 8, 64, 4096, 100'000}) {
      std::vector<uint8_t> garbage(bytes);
      for (uint8_t& byte : garbage) byte = static_cast<uint8_t>(rng());
      SendRaw(port, garbage);
      SendRaw(port, std::vector<uint8_t>(bytes, 0));
    }
  }
  Node client;
  const PeerId peer = client.fabric().Connect(address).value();
  ASSERT_TRUE(client.fabric().Send(peer, 1, {9}).ok());
  EXPECT_TRUE(client.WaitForFrames(1));
}

}  // namespace
}  // namespace specfabric::transport
