#include "model/kv_size.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::model {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

TEST(KvSizeTest, TakesWhatTheFractionLeaves) {
  // 80 GiB, 30 of them in use: .9 leaves 42.
  const GpuMemory memory = {.free = 50 * kGib, .total = 80 * kGib};
  EXPECT_EQ(*KvBlocksFor({}, memory, kGib), 42);
  EXPECT_EQ(*KvBlocksFor({.memory_fraction = 0.5}, memory, kGib), 10);
  EXPECT_EQ(*KvBlocksFor({.memory_fraction = 1}, memory, kGib), 50);
}

TEST(KvSizeTest, LeavesWhatIsReservedAndTakesItsShareOfTheRest) {
  const GpuMemory memory = {.free = 50 * kGib, .total = 80 * kGib};
  EXPECT_EQ(*KvBlocksFor({.reserved_bytes = 2 * kGib}, memory, kGib), 40);
  EXPECT_EQ(*KvBlocksFor({.share = 0.2, .reserved_bytes = 2 * kGib}, memory, kGib), 8);
}

TEST(KvSizeTest, TakesNoMoreThanIsOfUse) {
  const GpuMemory memory = {.free = 50 * kGib, .total = 80 * kGib};
  EXPECT_EQ(*KvBlocksFor({.most = 7}, memory, kGib), 7);
  EXPECT_EQ(*KvBlocksFor({}, memory, 1), kMostKvBlocks) << "far more would fit";
}

TEST(KvSizeTest, RefusesLessThanOneContextAndSaysWhatToDo) {
  const GpuMemory memory = {.free = 50 * kGib, .total = 80 * kGib};
  EXPECT_EQ(*KvBlocksFor({.least = 42}, memory, kGib), 42);
  const auto refused = KvBlocksFor({.least = 43}, memory, kGib);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  for (const char* said : {"30.00 GiB of the GPU's 80.00 GiB are in use", "leaves it 42.00 GiB",
                           "one whole context takes 43.00 GiB", "--max_context", "--kv_blocks"}) {
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(said));
  }
}

// A draft that starts after a target has taken all that the fraction allows.
TEST(KvSizeTest, RefusesWhereTheFractionIsExceededAlready) {
  const auto refused = KvBlocksFor({}, {.free = 5 * kGib, .total = 80 * kGib}, kGib);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("leaves it 0.00 GiB"));
}

}  // namespace
}  // namespace specfabric::model
