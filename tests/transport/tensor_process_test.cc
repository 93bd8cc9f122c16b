// Tensors from a process that is stopped or killed while it sends them. CMake runs it on the wires
// UCX picks for one machine, on those without cross-memory attach, and on TCP.

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/child_process.h"
#include "tests/transport/tensor_node.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr size_t kTensorBytes = 4 << 20;  // peer_process's
// The peer has four slots, and sends the next tensor before the last was received.
constexpr int32_t kSlots = 12;

std::vector<std::string> SenderTo(const std::string& address) {
  return {SPECFABRIC_PEER_PROCESS, "tensors", address};
}

// Whether the sender must run for a tensor to arrive: the receiver cannot read the sender's memory
// by itself (cross-memory attach, RDMA).
bool SenderMustHelp() {
  const std::string wires = EnvironmentOr("UCX_TLS", "");
  return wires == "tcp" || wires == "^cma";
}

// Stops the sender when its eighth tensor is announced, before any of that was received.
struct SenderThatStops {
  std::function<bool(PeerId, const TensorFields&)> Admit() {
    return [this](PeerId, const TensorFields& fields) {
      if (fields.tag < 8 || stopped) return true;
      child.load()->Stop();
      stopped = true;
      return true;
    };
  }

  std::atomic<ChildProcess*> child{nullptr};
  std::atomic<bool> stopped{false};
};

TEST(TensorProcessTest, AStoppedSendersTensorsAreGivenUp) {
  SenderThatStops stops;
  TensorNode::Settings settings;
  settings.slots = kSlots;
  settings.slot_bytes = kTensorBytes;
  settings.options.receive_timeout = 300 * base::kMillisecond;
  settings.options.silence_timeout = 0;
  settings.admit = stops.Admit();
  TensorNode receiver(settings);
  // Known once a fabric has made its settings.
  if (!MayAskForRendezvous()) {
    GTEST_SKIP()
        << "this UCX sends tensors eagerly, so that none is under way when its sender stops";
  }
  const std::string address = receiver.fabric().Listen(AnyPort()).value();
  ChildProcess sender({SPECFABRIC_PEER_PROCESS, "tensors", address, "0"});
  stops.child = &sender;  // set in time: the child learns the port only now
  ASSERT_TRUE(Eventually([&] { return stops.stopped.load(); }));
  const auto count = [&](SlotState state) { return Count(receiver.pool(), state); };
  ASSERT_TRUE(Eventually([&] { return count(SlotState::kReceiving) == 0; }));
  // What the sender had written to a socket may still end a tensor that was given up.
  int32_t quarantined = 0;
  ASSERT_TRUE(Eventually([&] {
    quarantined = count(SlotState::kQuarantined);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return count(SlotState::kQuarantined) == quarantined;
  }));
  if (SenderMustHelp()) {
    EXPECT_GE(quarantined, 1);
  }
  std::set<uint64_t> given_up;
  for (const auto& refused : receiver.TakeRefused()) {
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kDeadlineExceeded) << refused.status;
    EXPECT_THAT(std::string(refused.status.message()), HasSubstr("300 ms"));
    given_up.insert(refused.fields.tag);
  }
  EXPECT_GE(static_cast<int32_t>(given_up.size()), quarantined);
  EXPECT_EQ(receiver.stats().late_tensors, given_up.size());
  {
    std::vector<Lease> others;
    for (int32_t i = 0; i < kSlots - quarantined; ++i) {
      auto lease = receiver.pool().Acquire({});
      ASSERT_TRUE(lease.ok()) << i;
      others.push_back(*std::move(lease));
    }
    EXPECT_FALSE(receiver.pool().Acquire({}).ok()) << "a quarantined slot was handed out";
  }
  for (const auto& tensor : receiver.TakeTensors()) EXPECT_EQ(tensor.wrong_bytes, 0u);
  sender.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return count(SlotState::kQuarantined) == 0; }));
  ASSERT_TRUE(receiver.WaitForTensors(4)) << "later ones come";
  for (const auto& tensor : receiver.TakeTensors()) {
    EXPECT_EQ(given_up.count(tensor.fields.tag), 0u) << "delivered after it was given up";
    EXPECT_EQ(tensor.wrong_bytes, 0u);
  }
  sender.Kill();
  EXPECT_TRUE(receiver.WaitForAllFree());
}

TEST(TensorProcessTest, SenderKilledWhileWritingToOurSlots) {
  TensorNode::Settings settings;
  settings.slots = 4;
  settings.slot_bytes = kTensorBytes;
  TensorNode receiver(settings);
  const std::string address = receiver.fabric().Listen(AnyPort()).value();
  for (int life = 1; life <= 4; ++life) {
    ChildProcess sender(SenderTo(address));
    receiver.TakeTensors();
    ASSERT_TRUE(receiver.WaitForTensors(3 + life));
    const PeerId peer = receiver.node().opened().back().peer;
    sender.Kill();
    ASSERT_TRUE(receiver.node().WaitForClose(peer));
    EXPECT_FALSE(receiver.node().closed(peer)[0].ok());
    EXPECT_TRUE(receiver.WaitForAllFree());
    EXPECT_TRUE(Eventually([&] { return receiver.stats().releasing == 0; }));
    const auto arrived = receiver.TakeTensors();
    EXPECT_THAT(arrived, Not(IsEmpty()));
    for (const auto& tensor : arrived) EXPECT_EQ(tensor.wrong_bytes, 0u);
  }
}

TEST(TensorProcessTest, ReceiverKilledWhileWeWriteToItsSlots) {
  TensorNode::Settings settings;
  settings.slots = 8;
  settings.slot_bytes = kTensorBytes;
  TensorNode client(settings);
  for (int life = 1; life <= 4; ++life) {
    ChildProcess server({SPECFABRIC_PEER_PROCESS, "echo", AnyPort()});
    const std::string address = server.ReadLine();
    PeerId peer = client.fabric().Connect(address).value();
    // The first may meet the restart that a killed peer makes necessary.
    for (int attempt = 0; attempt < 10 && !client.node().WaitForOutcome(peer); ++attempt) {
      peer = client.fabric().Connect(address).value();
    }
    client.node().TakeFrames();
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(client.SendPattern(peer, 1, {{}, TensorNode::kPool, 1}, kTensorBytes).ok());
    }
    if (life % 2 == 0) {
      ASSERT_TRUE(client.node().WaitForFrames(1));
    }
    server.Kill();
    ASSERT_TRUE(client.node().WaitForClose(peer));
    EXPECT_TRUE(client.WaitForAllFree());
    EXPECT_TRUE(Eventually([&] { return client.stats().releasing == 0; }));
  }
}

// A slot of a closed connection is not free while UCX may still access it.
TEST(TensorProcessTest, ClosingAStoppedSenderFreesAllSlots) {
  TensorNode::Settings settings;
  settings.slots = kSlots;
  settings.slot_bytes = kTensorBytes;
  SenderThatStops stops;
  settings.options.silence_timeout = 0;
  settings.admit = stops.Admit();
  TensorNode receiver(settings);
  const std::string address = receiver.fabric().Listen(AnyPort()).value();
  ChildProcess sender({SPECFABRIC_PEER_PROCESS, "tensors", address, "0"});
  stops.child = &sender;
  ASSERT_TRUE(Eventually([&] { return stops.stopped.load(); }));
  const PeerId peer = receiver.node().opened().back().peer;
  receiver.fabric().Close(peer);
  ASSERT_TRUE(receiver.node().WaitForClose(peer));
  EXPECT_EQ(Count(receiver.pool(), SlotState::kReceiving), 0) << "taken for free or quarantined";
  EXPECT_TRUE(receiver.WaitForAllFree()) << "with the sender still stopped";
  EXPECT_TRUE(Eventually([&] { return receiver.stats().releasing == 0; }));
  sender.Kill();
}

}  // namespace
}  // namespace specfabric::transport
