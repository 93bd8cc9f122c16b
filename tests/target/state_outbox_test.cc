// Hidden states from a target to a draft, over a link.

#include "target/state_outbox.h"

#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "gtest/gtest.h"
#include "tests/link/service.h"

namespace specfabric::target {
namespace {

using link::LinkOptions;
using link::Service;
using link::TestOptions;
using transport::MemoryKind;

constexpr uint8_t kPool = 5;
constexpr uint32_t kBytes = 1 << 16;

LinkOptions Listening() {
  LinkOptions options = TestOptions(schemas::Role::kDraft);
  options.listen = transport::AnyPort();
  return options;
}
LinkOptions ConnectingTo(const std::string& address) {
  LinkOptions options = TestOptions(schemas::Role::kTarget);
  options.connect = {address};
  return options;
}

// Where slots in GPU memory cannot be had, as in a test without GPUs, they are the host's.
TEST(StateOutboxTest, SendsFromWhatSlotsThereAre) {
  Service draft(Listening());
  const auto pool =
      draft.link().AddPool(kPool, {MemoryKind::kHost, schemas::kStateSlotBytes, 2}).value();
  uint32_t number = 0;
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda}) {
    Service target(ConnectingTo(draft.link().listen_address()));
    ASSERT_TRUE(target.WaitForUps(1));
    const StateOutbox outbox = MakeStateOutbox([&] { return &target.link(); }, kind);
    ++number;
    absl::StatusOr<transport::Lease> slot = outbox.slot({9, number});
    ASSERT_TRUE(slot.ok()) << slot.status();
    if (slot->pool()->options().kind == MemoryKind::kCuda) GTEST_SKIP() << "there is a GPU here";
    EXPECT_EQ(slot->capacity(), schemas::kStateSlotBytes);
    std::memset(slot->data(), static_cast<int>(number), kBytes);
    const schemas::HiddenStates described = {
        .target_incarnation = 9, .number = number, .runs = {{7, 20, 3}}};
    const absl::Status sent =
        outbox.send(target.ups()[0].peer, described, kPool, *std::move(slot), kBytes);
    ASSERT_TRUE(sent.ok()) << sent;
    ASSERT_TRUE(draft.WaitForTensors(1) && draft.WaitForMessages(1));
    const auto tensors = draft.TakeTensors();
    const transport::Tensor& tensor = tensors[0].second;
    EXPECT_EQ(tensor.type, static_cast<uint16_t>(schemas::TensorType::kHiddenStates));
    EXPECT_EQ(tensor.fields.fence, (transport::Fence{9, number}));
    ASSERT_EQ(tensor.bytes.size(), kBytes);
    EXPECT_EQ(tensor.bytes[kBytes - 1], number);
    EXPECT_EQ(tensor.lease.pool(), pool.get());
    const auto messages = draft.TakeMessages();
    const auto* got = std::get_if<schemas::HiddenStates>(&messages[0].second);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->number, number);
    EXPECT_EQ(got->runs, described.runs);
  }
}

}  // namespace
}  // namespace specfabric::target
