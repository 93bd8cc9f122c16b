// Tensors between two fabrics of one process: where they arrive, slot states, refusals, faults.
// CMake runs it on the wires UCX picks for one machine and on TCP.

#include <atomic>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/tensor_node.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint8_t kPool = TensorNode::kPool;
constexpr uint32_t kMiB = 1 << 20;
// From this size on tensors go by rendezvous whatever the wire.
constexpr uint32_t kAlwaysInSlot = 32 << 10;
constexpr uint32_t kNeverInSlot = 1024;  // always eager

// A fence and a tag without equal bytes.
TensorFields Fields(uint64_t tag, uint8_t pool = kPool) {
  return {{0xabcdef0123456789 + tag, static_cast<uint32_t>(0x80000000 + tag)}, pool, tag};
}

bool SameFields(const TensorFields& a, const TensorFields& b) {
  return a.fence == b.fence && a.pool == b.pool && a.tag == b.tag;
}

TEST(TensorTest, EverySizeArrivesUnchangedAndUncopied) {
  TensorNode::Settings settings;
  settings.slots = 2;
  settings.slot_bytes = 8 * kMiB;
  TensorPair pair(settings);
  ASSERT_TRUE(pair.ok());
  std::vector<uint32_t> sizes = {0, 1, 7, 8, 100, 1000};
  for (uint32_t size = 1024; size <= 4 * kMiB; size *= 2) {
    sizes.insert(sizes.end(), {size - 1, size, size + 1});
  }
  sizes.push_back(8 * kMiB);
  uint64_t bytes = 0, bytes_in_slots = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint16_t type = static_cast<uint16_t>(i + 100);
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, type, Fields(i), sizes[i]).ok());
    ASSERT_TRUE(pair.receiver.WaitForTensors(1)) << sizes[i];
    const auto arrived = pair.receiver.TakeTensors();
    ASSERT_THAT(arrived, SizeIs(1));
    EXPECT_EQ(arrived[0].peer, pair.to_sender);
    EXPECT_EQ(arrived[0].type, type);
    EXPECT_TRUE(SameFields(arrived[0].fields, Fields(i)));
    EXPECT_EQ(arrived[0].bytes, sizes[i]);
    EXPECT_EQ(arrived[0].wrong_bytes, 0u) << sizes[i];
    if (sizes[i] >= kAlwaysInSlot) {
      EXPECT_TRUE(arrived[0].in_slot) << sizes[i];
    }
    if (sizes[i] <= kNeverInSlot) {
      EXPECT_FALSE(arrived[0].in_slot) << sizes[i];
    }
    bytes += sizes[i];
    if (arrived[0].in_slot) bytes_in_slots += sizes[i];
  }
  EXPECT_TRUE(pair.sender.WaitForAllFree());
  EXPECT_TRUE(pair.receiver.WaitForAllFree());
  // Without rendezvous a tensor is copied to its slot, once.
  EXPECT_EQ(pair.receiver.stats().bytes_copied, MayAskForRendezvous() ? 0 : bytes_in_slots);
  EXPECT_EQ(pair.sender.stats().bytes_copied, 0u);
  EXPECT_EQ(pair.receiver.stats().tensors_received, sizes.size());
  EXPECT_EQ(pair.receiver.stats().frames_received, sizes.size());
  EXPECT_EQ(pair.receiver.stats().bytes_received, bytes);
  EXPECT_TRUE(Eventually([&] { return pair.sender.stats().tensors_sent == sizes.size(); }));
  EXPECT_EQ(pair.sender.stats().bytes_sent, bytes);
  EXPECT_EQ(pair.sender.fabric().Connections().at(0).bytes_sent, bytes);
  EXPECT_EQ(pair.receiver.fabric().Connections().at(0).bytes_received, bytes);
}

// The header depends on which fields are zero, and on how the payload is sent.
TEST(TensorTest, ZeroAndNonZeroFieldsArrive) {
  TensorPair pair(TensorNode::Settings{});
  ASSERT_TRUE(pair.ok());
  for (const uint32_t bytes : {0u, 40u, 5'000u, kMiB}) {
    for (const uint64_t incarnation : {uint64_t{0}, UINT64_MAX}) {
      for (const uint32_t round : {0u, UINT32_MAX}) {
        for (const uint64_t tag : {uint64_t{0}, UINT64_MAX}) {
          const TensorFields fields = {{incarnation, round}, kPool, tag};
          ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 65535, fields, bytes).ok());
          ASSERT_TRUE(pair.receiver.WaitForTensors(1));
          const auto arrived = pair.receiver.TakeTensors();
          EXPECT_TRUE(SameFields(arrived[0].fields, fields)) << bytes;
          EXPECT_EQ(arrived[0].type, 65535) << bytes;
          EXPECT_EQ(arrived[0].bytes, bytes);
          EXPECT_EQ(arrived[0].wrong_bytes, 0u) << bytes;
        }
      }
    }
  }
}

TEST(TensorTest, LargeTensorsArriveInTheReceiversSlots) {
  TensorNode::Settings settings;
  settings.keep_leases = true;
  TensorPair pair(settings);
  ASSERT_TRUE(pair.ok());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), kMiB - i).ok());
  }
  ASSERT_TRUE(pair.receiver.WaitForTensors(8));
  std::set<const uint8_t*> slots;
  for (const auto& tensor : pair.receiver.TakeTensors()) {
    ASSERT_TRUE(tensor.lease);
    EXPECT_EQ(tensor.lease.pool(), &pair.receiver.pool());
    EXPECT_EQ(tensor.lease.state(), SlotState::kReading);
    EXPECT_EQ(tensor.lease.fence(), Fields(tensor.fields.tag).fence);
    EXPECT_EQ(CountWrong({tensor.lease.data(), tensor.bytes}, tensor.fields.tag), 0u);
    slots.insert(tensor.lease.data());
  }
  ASSERT_THAT(slots, SizeIs(8));
  const size_t stride = SlotPool::Stride(pair.receiver.pool().options());
  EXPECT_EQ(static_cast<size_t>(*slots.rbegin() - *slots.begin()), 7 * stride);
  EXPECT_TRUE(pair.receiver.WaitForAllFree());
}

// UCX may send the first message of an endpoint eagerly whatever its size; not so these. They also
// wait for the connection that they were sent before.
TEST(TensorTest, FirstTensorOfAConnectionMayBeLarge) {
  TensorNode::Settings settings;
  TensorNode receiver(settings), sender(settings);
  const std::string address = receiver.fabric().Listen(AnyPort()).value();
  for (int i = 0; i < 5; ++i) {
    const PeerId peer = sender.fabric().Connect(address).value();
    ASSERT_TRUE(sender.SendPattern(peer, 1, Fields(i), kMiB).ok());
    ASSERT_TRUE(receiver.WaitForTensors(1));
    const auto arrived = receiver.TakeTensors();
    EXPECT_TRUE(arrived[0].in_slot);
    EXPECT_EQ(arrived[0].wrong_bytes, 0u);
    sender.fabric().Close(peer);
    ASSERT_TRUE(sender.node().WaitForClose(peer));
  }
  EXPECT_TRUE(sender.WaitForAllFree());
  EXPECT_TRUE(receiver.WaitForAllFree());
}

TEST(TensorTest, SendersSlotIsSendingUntilTheReceiverTakesIt) {
  std::promise<void> asked, answer;
  TensorNode::Settings receives;
  receives.admit = [&](PeerId, const TensorFields& fields) {
    if (fields.tag == 0) {
      asked.set_value();
      answer.get_future().wait();
    }
    return true;
  };
  // More than the wires' buffers hold, where UCX does not wait for the receiver's answer.
  TensorNode::Settings sends;
  sends.slot_bytes = receives.slot_bytes = 8 * kMiB;
  TensorPair pair(sends, receives);
  ASSERT_TRUE(pair.ok());
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(0), 8 * kMiB).ok());
  asked.get_future().wait();
  for (int i = 1; i < 8; ++i) {
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), 8 * kMiB).ok());
  }
  EXPECT_TRUE(Eventually([&] { return Count(pair.sender.pool(), SlotState::kFilling) == 0; }));
  EXPECT_GE(Count(pair.sender.pool(), SlotState::kSending), 1);
  answer.set_value();
  ASSERT_TRUE(pair.receiver.WaitForTensors(8));
  EXPECT_TRUE(pair.sender.WaitForAllFree());
}

TEST(TensorTest, TensorsThatAreNotAdmittedCountAsStale) {
  TensorNode::Settings receives;
  receives.admit = [](PeerId, const TensorFields& fields) { return fields.tag % 2 == 0; };
  TensorPair pair({}, receives);
  ASSERT_TRUE(pair.ok());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), kMiB).ok());
  }
  ASSERT_TRUE(pair.receiver.WaitForTensors(4));
  EXPECT_TRUE(pair.sender.WaitForAllFree());
  EXPECT_TRUE(pair.receiver.WaitForAllFree());
  EXPECT_TRUE(Eventually([&] { return pair.receiver.stats().stale_tensors == 4; }));
  EXPECT_EQ(pair.receiver.stats().refused_tensors, 0u);
  for (const auto& tensor : pair.receiver.TakeTensors()) EXPECT_EQ(tensor.fields.tag % 2, 0u);
  EXPECT_THAT(pair.receiver.TakeRefused(), SizeIs(0));
}

TEST(TensorTest, WithoutAFreeSlotATensorIsRefusedAndLaterOnesArrive) {
  TensorNode::Settings receives;
  receives.slots = 1;
  receives.keep_leases = true;
  TensorPair pair({}, receives);
  ASSERT_TRUE(pair.ok());
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(1), kMiB).ok());
  ASSERT_TRUE(pair.receiver.WaitForTensors(1));
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(2), kMiB).ok());
  ASSERT_TRUE(pair.receiver.WaitForRefused(1));
  const auto refused = pair.receiver.TakeRefused();
  EXPECT_EQ(refused[0].peer, pair.to_sender);
  EXPECT_TRUE(SameFields(refused[0].fields, Fields(2)));
  EXPECT_EQ(refused[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pair.receiver.stats().refused_tensors, 1u);
  EXPECT_TRUE(pair.sender.WaitForAllFree());
  pair.receiver.TakeTensors();  // frees the slot
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(3), kMiB).ok());
  ASSERT_TRUE(pair.receiver.WaitForTensors(1));
  EXPECT_EQ(pair.receiver.TakeTensors()[0].fields.tag, 3u);
  EXPECT_THAT(pair.sender.node().closed(pair.to_receiver), SizeIs(0));
}

TEST(TensorTest, TensorsForMissingOrTooSmallPoolsAreRefused) {
  TensorNode::Settings sends, receives;
  sends.slot_bytes = 2 * kMiB;
  receives.slot_bytes = kMiB;
  TensorPair pair(sends, receives);
  ASSERT_TRUE(pair.ok());
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(1, 9), kMiB).ok());
  ASSERT_TRUE(pair.receiver.WaitForRefused(1));
  const auto unknown = pair.receiver.TakeRefused();
  EXPECT_EQ(unknown[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown[0].status.message()), HasSubstr("pool 9"));
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(2), kMiB + 1).ok());
  ASSERT_TRUE(pair.receiver.WaitForRefused(1));
  const auto large = pair.receiver.TakeRefused();
  EXPECT_EQ(large[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large[0].status.message()), HasSubstr("1048577 bytes"));
  EXPECT_EQ(pair.receiver.stats().refused_tensors, 2u);
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(3), kMiB).ok());
  EXPECT_TRUE(pair.receiver.WaitForTensors(1));
  EXPECT_TRUE(pair.sender.WaitForAllFree());
}

TEST(TensorTest, PoolsAreCheckedWhenTheyAreMade) {
  TensorNode node({});
  const auto code = [&](uint8_t id, const SlotPoolOptions& options) {
    return node.fabric().AddPool(id, options).status().code();
  };
  EXPECT_EQ(code(kPool, {MemoryKind::kHost, 4096, 1}), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code(2, {MemoryKind::kHost, 0, 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, {MemoryKind::kHost, 4096, 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, {MemoryKind::kHost, 4096, -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, {MemoryKind::kHost, SIZE_MAX, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, {MemoryKind::kHost, 4096, 1}), absl::StatusCode::kOk);
  EXPECT_EQ(code(127, {MemoryKind::kHost, 1, 1}), absl::StatusCode::kOk);
  EXPECT_EQ(code(128, {MemoryKind::kHost, 1, 1}), absl::StatusCode::kInvalidArgument);
}

TEST(TensorTest, FailedSendsFreeTheirSlots) {
  TensorNode::Settings settings;
  settings.options.max_frame_bytes = kMiB / 2;
  settings.options.max_outstanding_sends = 1;
  TensorPair pair(settings);
  ASSERT_TRUE(pair.ok());
  Fabric& fabric = pair.sender.fabric();
  const auto slot = [&] { return pair.sender.pool().Acquire({}).value(); };
  EXPECT_EQ(fabric.SendTensor(pair.to_receiver, 1, {}, Lease(), 0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fabric.SendTensor(pair.to_receiver, 1, {}, slot(), kMiB + 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fabric.SendTensor(pair.to_receiver, 1, {}, slot(), kMiB).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fabric.SendTensor(12345, 1, {}, slot(), 8).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Count(pair.sender.pool(), SlotState::kFree), 8);
  fabric.Close(pair.to_receiver);
  EXPECT_EQ(fabric.SendTensor(pair.to_receiver, 1, {}, slot(), 8).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Count(pair.sender.pool(), SlotState::kFree), 8);
  // Queued on a connection that is not open yet, then on none.
  const PeerId peer = fabric.Connect(pair.address).value();
  ASSERT_TRUE(fabric.SendTensor(peer, 1, {}, slot(), 8).ok());
  EXPECT_EQ(fabric.SendTensor(peer, 1, {}, slot(), 8).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pair.sender.stats().back_pressure, 1u);
  fabric.Close(peer);
  EXPECT_TRUE(pair.sender.WaitForAllFree());
}

TEST(TensorTest, LeasesOutliveTheirFabric) {
  TensorNode::Settings settings;
  settings.keep_leases = true;
  TensorPair pair(settings);
  ASSERT_TRUE(pair.ok());
  ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(5), kMiB).ok());
  ASSERT_TRUE(pair.receiver.WaitForTensors(1));
  auto arrived = pair.receiver.TakeTensors();
  pair.receiver.node().Destroy();
  EXPECT_EQ(pair.receiver.pool().memory_handle(), nullptr);
  EXPECT_EQ(CountWrong({arrived[0].lease.data(), kMiB}, 5), 0u);
  std::fill_n(arrived[0].lease.data(), kMiB, uint8_t{1});
  EXPECT_EQ(Count(pair.receiver.pool(), SlotState::kReading), 1);
  arrived.clear();
  EXPECT_EQ(Count(pair.receiver.pool(), SlotState::kFree), 8);
}

TEST(TensorCloseTest, WithTensorsInFlightBothWays) {
  for (int round = 0; round < 6; ++round) {
    TensorNode::Settings settings;
    settings.slots = 16;
    settings.slot_bytes = 4 * kMiB;
    TensorPair pair(settings);
    ASSERT_TRUE(pair.ok());
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), 4 * kMiB).ok());
      ASSERT_TRUE(pair.receiver.SendPattern(pair.to_sender, 1, Fields(i), 4 * kMiB).ok());
    }
    if (round % 2 == 0) {
      ASSERT_TRUE(pair.receiver.WaitForTensors(1));
    }
    TensorNode& closing = round % 3 == 0 ? pair.sender : pair.receiver;
    closing.fabric().Close(round % 3 == 0 ? pair.to_receiver : pair.to_sender);
    ASSERT_TRUE(pair.sender.node().WaitForClose(pair.to_receiver));
    ASSERT_TRUE(pair.receiver.node().WaitForClose(pair.to_sender));
    EXPECT_TRUE(pair.sender.WaitForAllFree());
    EXPECT_TRUE(pair.receiver.WaitForAllFree());
    EXPECT_TRUE(Eventually([&] { return pair.sender.stats().releasing == 0; }));
    EXPECT_TRUE(Eventually([&] { return pair.receiver.stats().releasing == 0; }));
    for (const auto& tensor : pair.receiver.TakeTensors()) EXPECT_EQ(tensor.wrong_bytes, 0u);
    for (const auto& tensor : pair.sender.TakeTensors()) EXPECT_EQ(tensor.wrong_bytes, 0u);
    // The same memory serves the next connection.
    const PeerId again = pair.sender.fabric().Connect(pair.address).value();
    ASSERT_TRUE(pair.sender.SendPattern(again, 1, Fields(99), 4 * kMiB).ok());
    ASSERT_TRUE(pair.receiver.WaitForTensors(1));
    EXPECT_EQ(pair.receiver.TakeTensors()[0].wrong_bytes, 0u);
  }
}

TEST(TensorCloseTest, DestroyedWithTensorsInFlight) {
  for (int round = 0; round < 4; ++round) {
    TensorNode::Settings settings;
    settings.slots = 16;
    TensorPair pair(settings);
    ASSERT_TRUE(pair.ok());
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), kMiB).ok());
      ASSERT_TRUE(pair.receiver.SendPattern(pair.to_sender, 1, Fields(i), kMiB).ok());
    }
    if (round % 2 == 0) {
      pair.sender.node().Destroy();
      EXPECT_TRUE(pair.receiver.node().WaitForClose(pair.to_sender));
    } else {
      pair.receiver.node().Destroy();
      EXPECT_TRUE(pair.sender.node().WaitForClose(pair.to_receiver));
    }
    EXPECT_TRUE(pair.sender.WaitForAllFree());
    EXPECT_TRUE(pair.receiver.WaitForAllFree());
  }
}

// Fault injection.

constexpr int kFaulty = 8;

// Sends kFaulty tensors of so many bytes through faults.
void SendThrough(const FaultOptions& faults, uint32_t bytes,
                 const std::function<void(TensorPair&)>& check) {
  TensorNode::Settings sends, receives;
  sends.options.faults = faults;
  receives.slots = 4 * kFaulty;
  TensorPair pair(sends, receives);
  ASSERT_TRUE(pair.ok());
  for (int i = 0; i < kFaulty; ++i) {
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), bytes).ok());
  }
  check(pair);
  EXPECT_TRUE(pair.sender.WaitForAllFree());
  EXPECT_TRUE(pair.receiver.WaitForAllFree());
}

class TensorFaultTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(TensorFaultTest, DuplicatesArriveTwiceAndComplete) {
  FaultOptions faults;
  faults.duplicate = 1;
  SendThrough(faults, GetParam(), [](TensorPair& pair) {
    ASSERT_TRUE(pair.receiver.WaitForTensors(2 * kFaulty));
    std::map<uint64_t, int> times;
    for (const auto& tensor : pair.receiver.TakeTensors()) {
      EXPECT_EQ(tensor.wrong_bytes, 0u);
      EXPECT_TRUE(SameFields(tensor.fields, Fields(tensor.fields.tag)));
      ++times[tensor.fields.tag];
    }
    EXPECT_THAT(times, SizeIs(kFaulty));
    for (const auto& [tag, count] : times) EXPECT_EQ(count, 2) << tag;
    EXPECT_EQ(pair.sender.stats().faults, static_cast<uint64_t>(kFaulty));
  });
}

TEST_P(TensorFaultTest, CorruptTensorsDifferInOneByte) {
  FaultOptions faults;
  faults.corrupt = 1;
  SendThrough(faults, GetParam(), [](TensorPair& pair) {
    ASSERT_TRUE(pair.receiver.WaitForTensors(kFaulty));
    for (const auto& tensor : pair.receiver.TakeTensors()) EXPECT_EQ(tensor.wrong_bytes, 1u);
  });
}

TEST_P(TensorFaultTest, SecondCopyOfACorruptTensorIsUnchanged) {
  FaultOptions faults;
  faults.corrupt = 1;
  faults.duplicate = 1;
  SendThrough(faults, GetParam(), [](TensorPair& pair) {
    ASSERT_TRUE(pair.receiver.WaitForTensors(2 * kFaulty));
    size_t wrong = 0;
    for (const auto& tensor : pair.receiver.TakeTensors()) wrong += tensor.wrong_bytes;
    EXPECT_EQ(wrong, static_cast<size_t>(kFaulty));
  });
}

TEST_P(TensorFaultTest, DroppedTensorsFreeTheirSlots) {
  FaultOptions faults;
  faults.drop = 1;
  SendThrough(faults, GetParam(), [](TensorPair& pair) {
    ASSERT_TRUE(Eventually([&] { return pair.sender.stats().faults == kFaulty; }));
    EXPECT_TRUE(pair.sender.WaitForAllFree());
    EXPECT_EQ(pair.sender.stats().frames_sent, 0u);
    EXPECT_EQ(pair.receiver.stats().tensors_received, 0u);
  });
}

TEST_P(TensorFaultTest, DelayedTensorsKeepTheirSlotsUntilSent) {
  FaultOptions faults;
  faults.delay_part = .5;
  faults.delay = 50 * base::kMillisecond;
  faults.reorder = .5;
  SendThrough(faults, GetParam(), [](TensorPair& pair) {
    ASSERT_TRUE(pair.receiver.WaitForTensors(kFaulty));
    for (const auto& tensor : pair.receiver.TakeTensors()) EXPECT_EQ(tensor.wrong_bytes, 0u);
  });
}

INSTANTIATE_TEST_SUITE_P(EagerAndRendezvous, TensorFaultTest, ::testing::Values(512, kMiB));

TEST(TensorCloseTest, WhileTensorsAreDelayed) {
  TensorNode::Settings sends;
  sends.options.faults.delay_part = 1;
  sends.options.faults.delay = 300 * base::kMillisecond;
  TensorPair pair(sends, {});
  ASSERT_TRUE(pair.ok());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, Fields(i), kMiB).ok());
  }
  pair.sender.fabric().Close(pair.to_receiver);
  ASSERT_TRUE(pair.sender.node().WaitForClose(pair.to_receiver));
  EXPECT_TRUE(pair.sender.WaitForAllFree());
  EXPECT_EQ(pair.receiver.stats().tensors_received, 0u);
}

// Load.

// Every tensor arrives complete or is refused, under any load.
TEST(TensorLoadTest, TensorsAndMessagesMixedFromManyThreads) {
  constexpr int kThreads = 3, kEach = 120;
  TensorNode::Settings sends, receives;
  sends.slots = 12;
  receives.slots = 4;
  sends.slot_bytes = receives.slot_bytes = kMiB / 2;
  TensorPair pair(sends, receives);
  ASSERT_TRUE(pair.ok());
  std::atomic<int> tensors{0}, messages{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const uint64_t tag = t * kEach + i;
        const uint32_t bytes = i % 3 == 0 ? 200 + i : kMiB / 4 + 1000 * i;
        absl::Status sent;
        do {
          sent = pair.sender.SendPattern(pair.to_receiver, t, Fields(tag), bytes);
          if (!sent.ok()) std::this_thread::sleep_for(std::chrono::microseconds(100));
        } while (absl::IsResourceExhausted(sent));
        ASSERT_TRUE(sent.ok()) << sent;
        ++tensors;
        std::vector<uint8_t> payload(i % 5 == 0 ? 60'000 : 100);
        FillPattern(payload.data(), payload.size(), tag);
        payload.push_back(static_cast<uint8_t>(tag));
        payload.push_back(static_cast<uint8_t>(tag >> 8));
        ASSERT_TRUE(pair.sender.fabric().Send(pair.to_receiver, t, std::move(payload)).ok());
        ++messages;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(tensors, kThreads * kEach);
  ASSERT_TRUE(pair.receiver.WaitForOutcomes(tensors));
  ASSERT_TRUE(pair.receiver.node().WaitForFrames(messages));
  std::set<uint64_t> tags;
  for (const auto& tensor : pair.receiver.TakeTensors()) {
    EXPECT_EQ(tensor.wrong_bytes, 0u) << tensor.fields.tag;
    EXPECT_TRUE(tags.insert(tensor.fields.tag).second) << "came twice";
  }
  for (const auto& refused : pair.receiver.TakeRefused()) {
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(tags.insert(refused.fields.tag).second) << "came and was refused";
  }
  EXPECT_THAT(tags, SizeIs(kThreads * kEach));
  std::set<uint64_t> seen;
  for (auto& [peer, frame] : pair.receiver.node().TakeFrames()) {
    const uint64_t tag = frame.payload[frame.payload.size() - 2] | frame.payload.back() << 8;
    EXPECT_EQ(CountWrong({frame.payload.data(), frame.payload.size() - 2}, tag), 0u);
    EXPECT_TRUE(seen.insert(tag).second);
  }
  EXPECT_TRUE(pair.sender.WaitForAllFree());
  EXPECT_TRUE(pair.receiver.WaitForAllFree());
}

// Slots that a reader keeps for long are never overwritten: other tensors are refused meanwhile.
TEST(TensorLoadTest, SlowReadersSlotsAreNeverOverwritten) {
  TensorNode::Settings sends, receives;
  receives.slots = 3;
  receives.keep_leases = true;
  TensorPair pair(sends, receives);
  ASSERT_TRUE(pair.ok());
  uint64_t tag = 0;
  const auto send = [&] {
    absl::Status sent;
    do {
      sent = pair.sender.SendPattern(pair.to_receiver, 1, Fields(tag), kMiB);
      if (!sent.ok()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    } while (absl::IsResourceExhausted(sent));
    ++tag;
    return sent;
  };
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(send().ok());
    ASSERT_TRUE(pair.receiver.WaitForTensors(3));
    const auto held = pair.receiver.TakeTensors();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(send().ok());
      for (const auto& tensor : held) {
        ASSERT_EQ(CountWrong({tensor.lease.data(), kMiB}, tensor.fields.tag), 0u);
        ASSERT_EQ(tensor.lease.state(), SlotState::kReading);
      }
    }
    ASSERT_TRUE(pair.receiver.WaitForRefused(20));
    EXPECT_THAT(pair.receiver.TakeRefused(), SizeIs(20));
    for (const auto& tensor : held) {
      EXPECT_EQ(CountWrong({tensor.lease.data(), kMiB}, tensor.fields.tag), 0u);
    }
  }
  EXPECT_EQ(pair.receiver.stats().refused_tensors, 80u);
  EXPECT_TRUE(pair.receiver.WaitForAllFree());
  EXPECT_TRUE(pair.sender.WaitForAllFree());
}

}  // namespace
}  // namespace specfabric::transport
