// For each fault: what happens to a connection with frames and tensors under way in both
// directions, to the resources it holds, and to the next connection. CMake runs the rows on the
// wires UCX picks between processes of one machine (shared memory) and on TCP, scripts/test-verbs
// over RDMA.
//
// A row passes when the fault ends the connection with the expected status, or does not affect it;
// when descriptors, mappings, slots, connections by wire and what UCX holds of closed connections
// are what they were, on both sides if both processes are alive; and when the next connection works
// like the first.

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/child_process.h"
#include "tests/transport/fault_peer.h"
#include "tests/transport/node.h"
#include "tests/transport/pattern.h"
#include "tests/transport/raw_socket.h"
#include "transport/handshake.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Bytes = std::vector<uint8_t>;
using absl::StatusCode;

constexpr int32_t kMaxSends = 64;
// For random bytes that never become a connection; shorter than RawConnection's timeout.
constexpr base::Nanos kConnectTimeout = 5 * base::kSecond;

class FaultMatrix;

struct Row {
  const char* name;
  // How the connection ends on our side; nothing: it stays open.
  std::optional<StatusCode> ends;
  // How it ends in the peer's process, which goes on; nothing: another process replaces it.
  std::optional<StatusCode> ends_for_peer;
  void (FaultMatrix::*strike)();
  void (FaultMatrix::*recover)();
  base::Nanos silence_timeout = ShortSilenceTimeout();
  bool loses_packets = false;
};

class FaultMatrix : public ::testing::TestWithParam<Row> {
 public:
  void Kill() { server_->Kill(); }
  void Stop() { server_->Stop(); }
  void Continue() { server_->Signal(SIGCONT); }
  void CloseOurs() { client_->fabric().Close(peer_); }
  void GoDeaf();
  void Hear() { server_->Signal(SIGUSR1); }
  void SendGarbage();
  void LoseEverything();
  void LoseFivePercent();
  void LoseNothing() { LosePackets(0); }
  void DoNothing() {}
  void StartAnother() { StartServer(AnyPort()); }
  void RestartOnItsPort() { StartServer(address_); }
  void MissConnectTimeoutThenStartAnother();

 protected:
  void SetUp() override {
    if (GetParam().loses_packets && LossyDevices().empty()) {
      GTEST_SKIP() << "packets are lost only where SPECFABRIC_TEST_LOSSY names devices for it: in "
                      "the virtual machine of scripts/test-verbs";
    }
    FabricOptions options = LoopbackOptions();
    options.connect_timeout = kConnectTimeout;
    options.silence_timeout = GetParam().silence_timeout;
    options.receive_timeout = ReceiveTimeout(options);
    options.max_outstanding_sends = kMaxSends;
    FabricHandler handler;
    handler.on_tensor = [this](PeerId, const Tensor& tensor) {
      wrong_bytes_ += CountWrong(tensor.bytes, tensor.fields.tag);
      ++tensors_;
    };
    client_ = std::make_unique<Node>(options, /*echo=*/false, std::move(handler));
    pools_ = AddPools(client_->fabric());
    our_address_ = client_->fabric().Listen(AnyPort()).value();
    StartServer(AnyPort());
  }
  void TearDown() override {
    StopTraffic();
    if (GetParam().loses_packets) LosePackets(0);
  }

  static std::vector<std::string> LossyDevices() {
    return absl::StrSplit(EnvironmentOr("SPECFABRIC_TEST_LOSSY", ""), ' ', absl::SkipEmpty());
  }
  static void LosePackets(int percent) {
    for (const std::string& device : LossyDevices()) {
      const std::string command = absl::StrCat("tc qdisc replace dev ", device,
                                               " root netem limit 100000 loss ", percent, "%");
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
    }
  }

  void StartServer(const std::string& address) {
    server_.reset();
    server_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{SPECFABRIC_FAULT_PEER, address,
                                 std::to_string(GetParam().silence_timeout / base::kMillisecond)});
    address_ = server_->ReadLine();
    ASSERT_THAT(address_, StartsWith(TestNetwork()));
  }

  // Tries again when the fabric restarts UCX, as it may after a peer was killed.
  void Connect() {
    for (int attempt = 0; attempt < 10; ++attempt) {
      peer_ = client_->fabric().Connect(address_).value();
      peers_end_.clear();
      if (client_->WaitForOutcome(peer_)) return;
    }
    FAIL() << "no connection to " << address_ << ": " << client_->closed(peer_)[0];
  }
  void Close() {
    client_->fabric().Close(peer_);
    ASSERT_TRUE(client_->WaitForClose(peer_));
  }
  // The peer process's next report of a connection's end.
  std::string NextEndOfPeers() {
    auto line = std::async(std::launch::async, [this] { return server_->ReadLine(); });
    if (line.wait_for(kTestTimeout) != std::future_status::ready) server_->Signal(SIGKILL);
    return line.get();
  }

  // All that a connection may have under way at once, and a tensor there and back.
  void ExpectThatItWorks() {
    client_->TakeFrames();
    for (int i = 0; i < kMaxSends; ++i) {
      const absl::Status sent = client_->fabric().Send(peer_, kEcho, Bytes(100 * i));
      ASSERT_TRUE(sent.ok()) << i << ": " << sent;
    }
    ASSERT_TRUE(client_->WaitForFrames(kMaxSends));
    const int before = tensors_;
    ASSERT_TRUE(Eventually([&] { return SendTensor().ok(); }));
    EXPECT_TRUE(Eventually([&] { return tensors_ == before + 1; }));
    EXPECT_EQ(wrong_bytes_, 0u);
  }

  absl::Status SendTensor(uint32_t bytes = kTensorBytes) {
    auto lease = pools_.send->Acquire({1, 1});
    if (!lease.ok()) return lease.status();
    const uint64_t tag = ++last_tag_;
    FillPattern(lease->data(), bytes, tag);
    return client_->fabric().SendTensor(peer_, 1, {{1, 1}, kReceivePool, tag}, *std::move(lease),
                                        bytes);
  }

  void StartTraffic() {
    stop_ = false;
    echoes_ = 0;
    traffic_ = std::thread([this] {
      while (!stop_) {
        bool sent = SendTensor().ok();
        for (size_t bytes : {10, 5'000, 200'000}) {
          sent = client_->fabric().Send(peer_, kEcho, Bytes(bytes)).ok() && sent;
        }
        echoes_ += client_->TakeFrames().size();
        if (!sent) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    const int before = tensors_;
    EXPECT_TRUE(Eventually([&] { return echoes_ > 20 && tensors_ > before + 5; }));
  }
  void StopTraffic() {
    stop_ = true;
    if (traffic_.joinable()) traffic_.join();
  }

  // Counts may still change for a moment: a value is final once it has been stable for longer than
  // the UCX listener of a connection is kept.
  static std::string Settled(const std::function<std::string()>& read, int times = 10) {
    std::string value = read();
    for (int same = 0; same < times; ++same) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (std::string now = read(); now != value) {
        value = std::move(now);
        same = 0;
      }
    }
    return value;
  }
  std::string OurResources() { return DescribeResources(client_->fabric(), pools_); }
  std::string Report() {
    client_->TakeFrames();
    const absl::Status sent = client_->fabric().Send(peer_, kReport, {});
    std::vector<std::pair<PeerId, Frame>> answer;
    const bool over = Eventually([&] {
      answer = client_->TakeFrames();
      return !answer.empty() || !client_->closed(peer_).empty();
    });
    if (answer.empty()) return over ? "connection lost" : "no report: " + sent.ToString();
    const Bytes& report = answer[0].second.payload;
    return std::string(report.begin(), report.end());
  }
  // Waits until nothing is under way; an emulated machine may pause for a long time.
  void Drain() {
    StopTraffic();
    const auto read = [this] {
      return absl::StrCat(client_->fabric().stats().frames_received, ", ", OurResources());
    };
    Settled(read, GetParam().loses_packets ? 60 : 10);
  }
  void ExpectResources(const std::string& expected) {
    if (Eventually([&] { return OurResources() == expected; })) return;
    EXPECT_EQ(OurResources(), expected);
  }
  // The peer's report is compared only where it is the same process. After a fault in shared memory
  // the peer may restart UCX, which costs one more connection.
  void ExpectRecovery(const std::string& resources, const std::optional<std::string>& report) {
    std::string ours, peers;
    const bool recovered = Eventually([&] {
      if (SharesMemory() && !client_->closed(peer_).empty()) Connect();
      ours = OurResources();
      peers = report ? Report() : "";
      return HasFatalFailure() || (ours == resources && peers == report.value_or(""));
    });
    if (recovered) return;
    EXPECT_EQ(ours, resources);
    EXPECT_EQ(peers, report.value_or(""));
  }
  static bool SharesMemory() { return absl::EndsWith(TestWire(), "/memory"); }

  std::unique_ptr<ChildProcess> server_;
  std::string address_;
  std::string peers_end_;  // what NextEndOfPeers said already of this connection
  PeerId peer_ = 0;
  Pools pools_;
  std::atomic<int> tensors_{0};
  std::atomic<uint64_t> wrong_bytes_{0};
  std::string our_address_;
  std::unique_ptr<Node> client_;  // before the thread that uses it, after what its callbacks use

 private:
  std::atomic<uint64_t> last_tag_{0};
  std::atomic<bool> stop_{false};
  std::atomic<size_t> echoes_{0};
  std::thread traffic_;
};

void FaultMatrix::GoDeaf() {
  const uint64_t before = client_->fabric().stats().back_pressure;
  ASSERT_TRUE(Eventually(
      [&] { return !absl::IsResourceExhausted(client_->fabric().Send(peer_, kGoDeaf, {})); }));
  EXPECT_TRUE(Eventually([&] { return client_->fabric().stats().back_pressure > before + 100; }));
}

void FaultMatrix::MissConnectTimeoutThenStartAnother() {
  const PeerId peer = client_->fabric().Connect(address_).value();
  ASSERT_TRUE(client_->WaitForClose(peer));
  const absl::Status status = client_->closed(peer)[0];
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no connection within"));
  StartAnother();
}

// To our own port, and to what UCX listens on: one port a device with TCP. Over RDMA it listens
// through the connection manager alone, which bytes over TCP cannot reach.
void FaultMatrix::SendGarbage() {
  const auto our_port =
      static_cast<uint16_t>(std::stoi(our_address_.substr(our_address_.rfind(':') + 1)));
  const uint64_t failures_before = client_->fabric().stats().connect_failures;
  uint64_t rejected = 0;
  std::mt19937_64 rng(11);
  for (uint16_t port : OwnListeningPorts()) {
    for (size_t bytes : {1, 8, 16, 48, 4096, 100'000}) {
      Bytes garbage(bytes);
      for (uint8_t& byte : garbage) byte = static_cast<uint8_t>(rng());
      SendRaw(port, garbage);
      SendRaw(port, Bytes(bytes, 0));
      if (port == our_port) rejected += 2;
    }
  }
  ASSERT_GT(rejected, 0u) << "our own port is not among those found";
  const Bytes greeting = EncodeHandshake(Greeting{RandomNonce()});
  const RawConnection half(our_port);
  half.Send(Bytes(greeting.begin(), greeting.begin() + greeting.size() / 2));
  Bytes of_another_version = greeting;
  of_another_version[8] ^= 0x40;  // behind the magic
  const RawConnection other(our_port);
  other.Send(of_another_version);
  const auto answer = other.ReceiveToEnd();
  ASSERT_TRUE(answer.has_value()) << "not closed";
  const auto refusal = ParseHandshake(*answer);
  ASSERT_TRUE(refusal.ok() && refusal->has_value()) << refusal.status();
  ASSERT_TRUE(std::holds_alternative<Refusal>(**refusal));
  EXPECT_EQ(std::get<Refusal>(**refusal), Refusal::kVersion);
  EXPECT_EQ(half.ReceiveToEnd(), Bytes()) << "closed without a word, at connect_timeout";
  rejected += 2;
  EXPECT_TRUE(Eventually([&] {
    return client_->fabric().stats().connect_failures == failures_before + rejected;
  })) << client_->fabric().stats().connect_failures - failures_before
      << " of " << rejected;
  for (const Node::Opened& opened : client_->opened()) EXPECT_FALSE(opened.inbound);
}

void FaultMatrix::LoseEverything() {
  LosePackets(100);
  // Each side must detect it by itself.
  peers_end_ = NextEndOfPeers();
}

void FaultMatrix::LoseFivePercent() {
  constexpr size_t kMessages = 200, kTensors = 20;
  // Large enough for a slot. RDMA sends all again from the lost packet on: 0.4 MB/s over Soft-RoCE.
  constexpr uint32_t kBytes = 40'000;
  Drain();
  client_->TakeFrames();
  LosePackets(5);
  std::vector<bool> back(kMessages, false);
  const int tensors_before = tensors_;
  size_t messages = 0, tensors = 0, echoes = 0;
  const auto tensors_back = [&] { return static_cast<size_t>(tensors_ - tensors_before); };
  const auto advance = [&] {
    if (messages < kMessages && messages < echoes + kMaxSends / 2 &&
        client_->fabric().Send(peer_, kEcho, Bytes(1 + messages * 20, messages)).ok()) {
      ++messages;
    }
    // At most as many as both sides have slots for.
    if (tensors < kTensors && tensors < tensors_back() + kSlots / 2 && SendTensor(kBytes).ok()) {
      ++tensors;
    }
    for (const auto& [peer, frame] : client_->TakeFrames()) {
      ++echoes;
      const size_t number = frame.payload.at(0);
      ASSERT_LT(number, kMessages);
      EXPECT_FALSE(back[number]) << number;
      EXPECT_EQ(frame.payload, Bytes(1 + number * 20, number));
      back[number] = true;
    }
  };
  // Each lost packet may cost a second, so each step has its own timeout.
  while (echoes < kMessages || tensors_back() < kTensors) {
    const size_t before = messages + tensors + echoes + tensors_back();
    const bool moved = Eventually([&] {
      advance();
      return HasFatalFailure() || messages + tensors + echoes + tensors_back() > before;
    });
    ASSERT_TRUE(moved) << echoes << " messages and " << tensors_back() << " tensors came back";
  }
  EXPECT_EQ(wrong_bytes_, 0u);
  EXPECT_THAT(client_->closed(peer_), SizeIs(0));
}

TEST_P(FaultMatrix, IsDetectedAndLeavesNothingBehind) {
  const Row& row = GetParam();
  std::string open, report;
  // The first connections make UCX allocate what it then keeps.
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    ASSERT_NO_FATAL_FAILURE(ExpectThatItWorks());
    EXPECT_THAT(client_->fabric().Transport(peer_), HasSubstr(TestWire()));
    open = Settled([this] { return OurResources(); });
    report = Settled([this] { return Report(); });
    ASSERT_NO_FATAL_FAILURE(Close());
    EXPECT_THAT(NextEndOfPeers(), StartsWith("closed UNAVAILABLE"));
  }
  const std::string at_rest = Settled([this] { return OurResources(); });

  ASSERT_NO_FATAL_FAILURE(Connect());
  StartTraffic();
  ASSERT_NO_FATAL_FAILURE((this->*row.strike)());
  if (!row.ends) {
    Drain();
    ASSERT_THAT(client_->closed(peer_), SizeIs(0));
    ASSERT_NO_FATAL_FAILURE(ExpectThatItWorks());
    ASSERT_NO_FATAL_FAILURE(Close());
  }
  ASSERT_TRUE(client_->WaitForClose(peer_));
  StopTraffic();
  ASSERT_THAT(client_->closed(peer_), SizeIs(1));
  const absl::Status end = client_->closed(peer_)[0];
  EXPECT_EQ(end.code(), row.ends.value_or(StatusCode::kOk)) << end;
  const bool by_silence = row.ends == StatusCode::kDeadlineExceeded;
  if (by_silence) {
    EXPECT_THAT(std::string(end.message()), HasSubstr("silent for"));
  }
  EXPECT_EQ(client_->fabric().stats().silent_peers, by_silence ? 1u : 0u);
  EXPECT_TRUE(absl::IsNotFound(client_->fabric().Send(peer_, kEcho, {})));
  ExpectResources(at_rest);

  ASSERT_NO_FATAL_FAILURE((this->*row.recover)());
  if (row.ends_for_peer) {
    if (peers_end_.empty()) peers_end_ = NextEndOfPeers();
    EXPECT_THAT(peers_end_, StartsWith("closed " + absl::StatusCodeToString(*row.ends_for_peer)));
  }
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(
      ExpectRecovery(open, row.ends_for_peer ? std::optional(report) : std::nullopt));
  ASSERT_NO_FATAL_FAILURE(ExpectThatItWorks());
  ASSERT_NO_FATAL_FAILURE(Close());
  ExpectResources(at_rest);
  if (!SharesMemory()) {
    EXPECT_EQ(client_->fabric().stats().restarts, 0u);
  }
}

constexpr StatusCode kDied = StatusCode::kUnavailable;
constexpr StatusCode kSilent = StatusCode::kDeadlineExceeded;
constexpr StatusCode kClosed = StatusCode::kOk;
constexpr auto kSurvives = std::nullopt;
constexpr auto kAnotherProcess = std::nullopt;
// TCP and RDMA may send a lost packet several times, at longer and longer intervals.
constexpr base::Nanos kLongSilence = 60 * base::kSecond;

using M = FaultMatrix;
INSTANTIATE_TEST_SUITE_P(
    Faults, FaultMatrix,
    ::testing::Values(
        // clang-format off
        Row{"KilledPeer", kDied, kAnotherProcess, &M::Kill, &M::StartAnother},
        Row{"ListenerRestartedOnItsPort", kDied, kAnotherProcess, &M::Kill, &M::RestartOnItsPort},
        Row{"StoppedPeer", kSilent, kAnotherProcess, &M::Stop,
            &M::MissConnectTimeoutThenStartAnother},
        Row{"PeerContinuedAfterTheDeadline", kSilent, kDied, &M::Stop, &M::Continue},
        Row{"ClosedWithRequestsInFlight", kClosed, kDied, &M::CloseOurs, &M::DoNothing},
        Row{"PeerThatNeverReceives", kSilent, kDied, &M::GoDeaf, &M::Hear},
        Row{"GarbageToTheListeningPorts", kSurvives, kDied, &M::SendGarbage, &M::DoNothing},
        Row{"AllPacketsLost", kSilent, kSilent, &M::LoseEverything, &M::LoseNothing,
            ShortSilenceTimeout(), /*loses_packets=*/true},
        Row{"FivePercentOfPacketsLost", kSurvives, kDied, &M::LoseFivePercent, &M::LoseNothing,
            kLongSilence, /*loses_packets=*/true}),
    // clang-format on
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace specfabric::transport
