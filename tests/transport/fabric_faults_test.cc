// Fault injection in a fabric: each frame gets exactly the faults that the injector decides.

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/node.h"
#include "transport/faults.h"

namespace specfabric::transport {
namespace {

using Payload = std::vector<uint8_t>;

constexpr int kFrames = 300;

// Frames of 0 to some hundred bytes, each with different contents.
Payload FrameNumber(int i) {
  Payload payload(i == 0 ? 0 : 4 + i % 7 * 100, static_cast<uint8_t>(i));
  if (i > 0) std::memcpy(payload.data(), &i, sizeof(i));
  return payload;
}

// A receiver without and a sender with faults, connected.
struct Pair {
  explicit Pair(const FaultOptions& faults) : sender(WithFaults(faults)) {
    to_receiver = sender.fabric().Connect(receiver.fabric().Listen("127.0.0.1:0").value()).value();
  }
  static FabricOptions WithFaults(const FaultOptions& faults) {
    FabricOptions options = LoopbackOptions();
    options.faults = faults;
    return options;
  }
  std::vector<Payload> TakePayloads() {
    std::vector<Payload> payloads;
    for (auto& [peer, frame] : receiver.TakeFrames()) payloads.push_back(std::move(frame.payload));
    return payloads;
  }

  Node receiver;
  Node sender;
  PeerId to_receiver = 0;
};

TEST(FabricFaultsTest, EachFrameGetsTheFaultsDecidedForIt) {
  const FaultOptions faults =
      ParseFaults("drop=.1,duplicate=.2,reorder=.2,corrupt=.2,delay=1ms:.2,seed=4").value();
  FaultInjector injector(faults);
  std::vector<Payload> expected;
  uint64_t faulty = 0;
  for (int i = 0; i < kFrames; ++i) {
    Payload payload = FrameNumber(i);
    const FaultDecision decision = injector.Decide(static_cast<uint32_t>(payload.size()));
    if (decision.copies == 2) expected.push_back(payload);
    if (decision.corrupt) payload[decision.corrupt_at] ^= decision.corrupt_with;
    if (decision.copies > 0) expected.push_back(payload);
    faulty += decision.faulty;
  }

  Pair pair(faults);
  ASSERT_TRUE(pair.sender.WaitForOutcome(pair.to_receiver));
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(pair.sender.fabric().Send(pair.to_receiver, 1, FrameNumber(i)).ok());
  }
  ASSERT_TRUE(pair.receiver.WaitForFrames(expected.size()));
  const std::vector<Payload> received = pair.TakePayloads();
  EXPECT_TRUE(
      std::is_permutation(received.begin(), received.end(), expected.begin(), expected.end()));
  EXPECT_EQ(pair.sender.fabric().stats().faults, faulty);
  EXPECT_EQ(pair.receiver.fabric().stats().faults, 0u);

  // Had more been sent than expected, the next frames would not be the only ones left.
  pair.sender.fabric().Close(pair.to_receiver);
  ASSERT_TRUE(pair.sender.WaitForClose(pair.to_receiver));
  EXPECT_EQ(pair.sender.fabric().stats().frames_sent, expected.size());
}

TEST(FabricFaultsTest, FramesAreDelayedByHalfTheRoundTrip) {
  FaultOptions faults;
  faults.simulated_rtt = 40 * base::kMillisecond;
  Pair pair(faults);
  ASSERT_TRUE(pair.sender.WaitForOutcome(pair.to_receiver));
  for (int i = 0; i < 5; ++i) {
    const base::Nanos sent = base::Now();
    ASSERT_TRUE(pair.sender.fabric().Send(pair.to_receiver, 1, FrameNumber(i)).ok());
    ASSERT_TRUE(pair.receiver.WaitForFrames(1));
    // A lower limit only, because the machine may be slow; half the delay, because the fabric's
    // clock may be one turn old.
    EXPECT_GE(base::Now() - sent, faults.simulated_rtt / 4);
    EXPECT_EQ(pair.TakePayloads(), std::vector<Payload>{FrameNumber(i)});
  }
  EXPECT_EQ(pair.sender.fabric().stats().faults, 0u);
}

TEST(FabricFaultsTest, EqualDelaysKeepTheOrder) {
  FaultOptions faults;
  faults.simulated_rtt = 2 * base::kMillisecond;
  Pair pair(faults);
  ASSERT_TRUE(pair.sender.WaitForOutcome(pair.to_receiver));
  std::vector<Payload> expected;
  for (int i = 0; i < kFrames; ++i) {
    expected.push_back(FrameNumber(i));
    ASSERT_TRUE(pair.sender.fabric().Send(pair.to_receiver, 1, FrameNumber(i)).ok());
  }
  ASSERT_TRUE(pair.receiver.WaitForFrames(kFrames));
  EXPECT_EQ(pair.TakePayloads(), expected);
}

TEST(FabricFaultsTest, DelayedFramesAreOvertaken) {
  FaultOptions faults;
  faults.reorder = .5;
  faults.reorder_delay = 100 * base::kMillisecond;
  FaultInjector injector(faults);
  std::vector<Payload> expected, held_back;
  Pair pair(faults);
  ASSERT_TRUE(pair.sender.WaitForOutcome(pair.to_receiver));
  for (int i = 0; i < 20; ++i) {
    Payload payload = FrameNumber(i);
    const FaultDecision decision = injector.Decide(static_cast<uint32_t>(payload.size()));
    (decision.delay > 0 ? held_back : expected).push_back(payload);
    ASSERT_TRUE(pair.sender.fabric().Send(pair.to_receiver, 1, std::move(payload)).ok());
  }
  ASSERT_FALSE(expected.empty() || held_back.empty());
  expected.insert(expected.end(), held_back.begin(), held_back.end());
  ASSERT_TRUE(pair.receiver.WaitForFrames(expected.size()));
  EXPECT_EQ(pair.TakePayloads(), expected);
}

// Delayed and dropped frames release their outstanding sends.
TEST(FabricFaultsTest, DroppedAndDelayedSendsAreReleased) {
  FabricOptions options =
      Pair::WithFaults(ParseFaults("drop=.3,duplicate=.3,delay=100us:.5,seed=2").value());
  options.max_outstanding_sends = 4;
  Node receiver;
  Node sender(options);
  const PeerId peer =
      sender.fabric().Connect(receiver.fabric().Listen("127.0.0.1:0").value()).value();
  ASSERT_TRUE(sender.WaitForOutcome(peer));
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  for (int sent = 0; sent < kFrames;) {
    const absl::Status status = sender.fabric().Send(peer, 1, FrameNumber(sent));
    if (status.ok()) {
      ++sent;
      continue;
    }
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "stuck after " << sent;
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace specfabric::transport
