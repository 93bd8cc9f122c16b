// Slots and leases without UCX: which lease holds which slot, and that every slot is freed.

#include "transport/slot_pool.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/kept_tensor.h"

namespace specfabric::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int slabs_freed = 0;

void FreeTestSlab(const Slab& slab) {
  delete[] slab.data;
  ++slabs_freed;
}

std::shared_ptr<SlotPool> MakePool(int32_t slots, size_t slot_bytes) {
  SlotPoolOptions options;
  options.slots = slots;
  options.slot_bytes = slot_bytes;
  Slab slab;
  slab.bytes = slots * SlotPool::Stride(options);
  slab.data = new uint8_t[slab.bytes]();
  return std::make_shared<SlotPool>(options, slab, &FreeTestSlab);
}

int32_t Count(const SlotPool& pool, SlotState state) {
  return pool.CountStates()[static_cast<size_t>(state)];
}

TEST(SlotPoolTest, LeaseFillsASlotAndFreesIt) {
  const auto pool = MakePool(3, 100);
  EXPECT_EQ(Count(*pool, SlotState::kFree), 3);
  {
    const Lease lease = pool->Acquire({7, 9}).value();
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease.state(), SlotState::kFilling);
    EXPECT_EQ(lease.capacity(), 100u);
    EXPECT_EQ(lease.fence(), (Fence{7, 9}));
    EXPECT_EQ(lease.pool(), pool.get());
    EXPECT_EQ(Count(*pool, SlotState::kFilling), 1);
    EXPECT_EQ(Count(*pool, SlotState::kFree), 2);
  }
  EXPECT_EQ(Count(*pool, SlotState::kFilling), 0);
  EXPECT_EQ(Count(*pool, SlotState::kFree), 3);
}

TEST(SlotPoolTest, SlotsDoNotOverlap) {
  const auto pool = MakePool(5, 65);
  EXPECT_GE(SlotPool::Stride(pool->options()), 65 + kSlotHeadroom);
  std::vector<Lease> leases;
  std::set<uint8_t*> starts;
  for (int i = 0; i < 5; ++i) {
    leases.push_back(pool->Acquire({}).value());
    starts.insert(leases.back().data());
  }
  ASSERT_EQ(starts.size(), 5u);
  uint8_t* expected = *starts.begin();
  for (uint8_t* start : starts) {
    EXPECT_EQ(start, expected);
    expected += SlotPool::Stride(pool->options());
  }
}

TEST(SlotPoolTest, ExhaustionErrorNamesTheNumberOfSlots) {
  const auto pool = MakePool(2, 16);
  Lease first = pool->Acquire({}).value();
  const Lease second = pool->Acquire({}).value();
  const absl::Status none = pool->Acquire({}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(none.message()), "none of the pool's 2 slots is free");
  uint8_t* const data = first.data();
  first.Release();
  EXPECT_EQ(pool->Acquire({}).value().data(), data);
}

TEST(SlotPoolTest, AnEmptyLeaseHoldsNothing) {
  Lease empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(empty.capacity(), 0u);
  EXPECT_EQ(empty.pool(), nullptr);
  EXPECT_EQ(empty.state(), SlotState::kFree);
  empty.Release();
  Lease other = std::move(empty);
  EXPECT_FALSE(other);
}

TEST(SlotPoolTest, ReleasingTwiceFreesOnce) {
  const auto pool = MakePool(2, 16);
  Lease lease = pool->Acquire({}).value();
  lease.Release();
  EXPECT_FALSE(lease);
  EXPECT_EQ(lease.data(), nullptr);
  lease.Release();
  EXPECT_EQ(Count(*pool, SlotState::kFree), 2);
  // A slot freed twice would be taken twice.
  const Lease first = pool->Acquire({}).value();
  const Lease second = pool->Acquire({}).value();
  EXPECT_NE(first.data(), second.data());
  EXPECT_FALSE(pool->Acquire({}).ok());
}

TEST(SlotPoolTest, MovingTransfersTheSlot) {
  const auto pool = MakePool(2, 16);
  Lease first = pool->Acquire({1, 2}).value();
  uint8_t* const data = first.data();
  Lease second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what a moved-from lease is, is promised
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.fence(), (Fence{1, 2}));
  Lease third = pool->Acquire({3, 4}).value();
  third = std::move(second);  // its own slot goes back
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.fence(), (Fence{1, 2}));
  EXPECT_EQ(Count(*pool, SlotState::kFree), 1);
  Lease& itself = third;
  third = std::move(itself);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.state(), SlotState::kFilling);
}

TEST(KeptTensorTest, OutlivesTheBytesItCameIn) {
  const auto pool = MakePool(1, 100);
  const TensorFields fields = {{7, 9}, 3, 11};
  std::vector<uint8_t> small = {1, 2, 3};
  Tensor eager;
  eager.fields = fields;
  eager.bytes = small;
  const KeptTensor copied = Keep(std::move(eager));
  small.assign({4, 5, 6});
  EXPECT_THAT(copied.bytes(), ElementsAre(1, 2, 3));
  EXPECT_EQ(copied.fields.tag, 11u);
  EXPECT_FALSE(copied.on_device());
  {
    Tensor received;
    received.fields = fields;
    received.lease = pool->Acquire(fields.fence).value();
    received.bytes = {received.lease.data(), 2};
    received.lease.data()[1] = 8;
    const KeptTensor kept = Keep(std::move(received));
    EXPECT_EQ(kept.bytes().data(), kept.lease.data());
    EXPECT_THAT(kept.bytes(), ElementsAre(0, 8));
    EXPECT_EQ(kept.fields.fence, fields.fence);
    EXPECT_FALSE(kept.on_device());
    EXPECT_EQ(Count(*pool, SlotState::kFree), 0);
  }
  EXPECT_EQ(Count(*pool, SlotState::kFree), 1);
}

TEST(SlotPoolTest, MemoryIsKeptUntilTheLastLease) {
  slabs_freed = 0;
  auto pool = MakePool(2, 4096);
  std::optional<Lease> first = pool->Acquire({}).value();
  std::optional<Lease> second = pool->Acquire({}).value();
  pool.reset();
  first.reset();
  EXPECT_EQ(slabs_freed, 0);
  std::fill_n(second->data(), second->capacity(), uint8_t{5});
  EXPECT_EQ(second->data()[4095], 5);
  second.reset();
  EXPECT_EQ(slabs_freed, 1);
}

// Random acquiring, releasing and moving, against a model: which slot each of our leases holds, and
// what was written there.
TEST(SlotPoolTest, AgreesWithAModel) {
  constexpr int kSlots = 7, kHolders = 12, kSteps = 20'000;
  constexpr size_t kBytes = 48;
  const auto pool = MakePool(kSlots, kBytes);
  std::vector<Lease> holders(kHolders);
  std::map<int, std::pair<uint8_t*, uint8_t>> model;  // by holder: slot and its contents
  std::mt19937 rng(4);
  const auto any = [&rng] { return std::uniform_int_distribution(0, kHolders - 1)(rng); };
  for (int step = 0; step < kSteps; ++step) {
    const int a = any(), b = any();
    switch (rng() % 4) {
      case 0: {
        auto lease = pool->Acquire({static_cast<uint64_t>(step), 1});
        ASSERT_EQ(lease.ok(), model.size() < kSlots) << step;
        if (!lease.ok()) break;
        for (const auto& [holder, slot] : model) ASSERT_NE(slot.first, lease->data());
        std::fill_n(lease->data(), kBytes, static_cast<uint8_t>(step));
        model[a] = {lease->data(), static_cast<uint8_t>(step)};
        holders[a] = *std::move(lease);
        break;
      }
      case 1:
        holders[a].Release();
        model.erase(a);
        break;
      default:
        holders[b] = std::move(holders[a]);
        if (a == b) break;
        model.erase(b);
        if (model.contains(a)) model[b] = model[a];
        model.erase(a);
    }
    ASSERT_EQ(Count(*pool, SlotState::kFilling), static_cast<int32_t>(model.size())) << step;
    ASSERT_EQ(Count(*pool, SlotState::kFree), kSlots - static_cast<int32_t>(model.size())) << step;
    for (int holder = 0; holder < kHolders; ++holder) {
      const auto slot = model.find(holder);
      ASSERT_EQ(static_cast<bool>(holders[holder]), slot != model.end()) << step;
      if (slot == model.end()) continue;
      const auto [data, contents] = slot->second;
      ASSERT_EQ(holders[holder].data(), data) << step;
      ASSERT_TRUE(std::all_of(data, data + kBytes, [c = contents](uint8_t x) { return x == c; }))
          << step;
    }
  }
}

TEST(SlotPoolTest, ThreadsNeverShareASlot) {
  constexpr int kThreads = 4, kRounds = 5'000;
  const auto pool = MakePool(kThreads / 2, 256);
  std::vector<std::thread> threads;
  std::atomic<int> successes{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        auto lease = pool->Acquire({});
        if (!lease.ok()) continue;
        ++successes;
        std::fill_n(lease->data(), 256, static_cast<uint8_t>(t));
        const uint8_t* data = lease->data();
        ASSERT_TRUE(std::all_of(data, data + 256, [t](uint8_t x) { return x == t; }));
        ASSERT_EQ(lease->state(), SlotState::kFilling);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(successes, 0);
  EXPECT_EQ(Count(*pool, SlotState::kFree), kThreads / 2);
}

TEST(SlotPoolTest, KindsHaveNames) {
  EXPECT_THAT(Name(MemoryKind::kHost), HasSubstr("host"));
  EXPECT_THAT(Name(MemoryKind::kCuda), HasSubstr("cuda"));
}

}  // namespace
}  // namespace specfabric::transport
