// Tensors between peers that are up.

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "link/fabric_counters.h"
#include "tests/link/service.h"
#include "tests/transport/node.h"

namespace specfabric::link {
namespace {

using schemas::Role;
using schemas::TensorType;
using ::testing::SizeIs;

constexpr uint8_t kPool = 3;
constexpr uint32_t kBytes = 1 << 20;
const transport::SlotPoolOptions kSlots = {transport::MemoryKind::kHost, kBytes, 2};

LinkOptions Listening() {
  LinkOptions options = TestOptions(Role::kTarget);
  options.listen = transport::AnyPort();
  return options;
}

// A draft that sends to a target.
class LinkTensorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(target_.WaitForUps(1) && draft_.WaitForUps(1));
    to_target_ = draft_.ups()[0].peer;
    receive_ = target_.link().AddPool(kPool, kSlots).value();
    send_ = draft_.link().AddPool(kPool, kSlots).value();
  }

  absl::Status SendTensor(uint64_t tag, uint8_t pool = kPool) {
    transport::Lease lease = send_->Acquire({7, 9}).value();
    std::memset(lease.data(), static_cast<int>(tag), kBytes);
    return draft_.link().SendTensor(to_target_, TensorType::kDraftProbs, {{7, 9}, pool, tag},
                                    std::move(lease), kBytes);
  }

  static LinkOptions ConnectingTo(const std::string& address) {
    LinkOptions options = TestOptions(Role::kDraft);
    options.connect = {address};
    return options;
  }

  Service target_{Listening()};
  Service draft_{ConnectingTo(target_.link().listen_address())};
  PeerId to_target_ = 0;
  std::shared_ptr<transport::SlotPool> receive_, send_;
};

TEST_F(LinkTensorTest, ArriveInTheReceiversSlots) {
  ASSERT_TRUE(SendTensor(5).ok());
  ASSERT_TRUE(target_.WaitForTensors(1));
  const auto tensors = target_.TakeTensors();
  EXPECT_EQ(tensors[0].first, target_.ups()[0].peer);
  const transport::Tensor& tensor = tensors[0].second;
  EXPECT_EQ(tensor.type, static_cast<uint16_t>(TensorType::kDraftProbs));
  EXPECT_EQ(tensor.fields.tag, 5u);
  EXPECT_EQ(tensor.fields.fence, (transport::Fence{7, 9}));
  ASSERT_EQ(tensor.bytes.size(), kBytes);
  EXPECT_EQ(tensor.bytes[0], 5);
  EXPECT_EQ(tensor.bytes[kBytes - 1], 5);
  EXPECT_EQ(tensor.lease.pool(), receive_.get());
}

TEST_F(LinkTensorTest, MetricsShowSlotStates) {
  transport::Lease lease = send_->Acquire({7, 9}).value();
  const metrics::FabricCounters counters = ReadCounters(draft_.link());
  EXPECT_GE(counters.registered_bytes.at("host"), kSlots.slots * kBytes);
  EXPECT_EQ(counters.registered_bytes.at("cuda"), 0u);
  EXPECT_EQ(counters.slots.at("filling"), 1);
  EXPECT_EQ(counters.slots.at("free"), 1);
  EXPECT_EQ(counters.slots.at("sending"), 0);
}

TEST_F(LinkTensorTest, UnwantedOnesTakeNoSlot) {
  ASSERT_TRUE(SendTensor(Service::kUnwanted).ok());
  ASSERT_TRUE(SendTensor(6).ok());
  ASSERT_TRUE(target_.WaitForTensors(1));
  const auto tensors = target_.TakeTensors();
  ASSERT_THAT(tensors, SizeIs(1));
  EXPECT_EQ(tensors[0].second.fields.tag, 6u);
  EXPECT_TRUE(target_.WaitFor([&] { return target_.link().fabric_stats().stale_tensors == 1; }));
}

TEST_F(LinkTensorTest, TensorForAMissingPoolIsRefused) {
  ASSERT_TRUE(SendTensor(8, kPool + 1).ok());
  ASSERT_TRUE(target_.WaitForRefused(1));
  EXPECT_EQ(target_.refused()[0].first, 8u);
  EXPECT_EQ(target_.refused()[0].second.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(target_.downs(), SizeIs(0)) << "the peer stays";
}

// A bare fabric can send a tensor before its Hello.
TEST(LinkTensorBeforeHelloTest, ClosesThePeer) {
  Service target(Listening());
  transport::Node bare_node;
  const PeerId peer = bare_node.fabric().Connect(target.link().listen_address()).value();
  ASSERT_TRUE(bare_node.WaitForOpen(1));
  auto pool = bare_node.fabric().AddPool(1, {transport::MemoryKind::kHost, 64, 1}).value();
  ASSERT_TRUE(bare_node.fabric().SendTensor(peer, 1, {}, pool->Acquire({}).value(), 64).ok());
  ASSERT_TRUE(bare_node.WaitForClose(peer));
  EXPECT_EQ(target.link().stats().malformed, 1u);
  EXPECT_THAT(target.ups(), SizeIs(0));
}

}  // namespace
}  // namespace specfabric::link
