#include "scheduler/kv_blocks.h"

#include <set>

#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

TEST(KvBlocksTest, HandsOutEachBlockOnceAndAllOrNothing) {
  KvBlocks pool(10);
  const auto a = pool.Allocate(4), b = pool.Allocate(6);
  ASSERT_TRUE(a && b);
  std::set<int32_t> blocks(a->begin(), a->end());
  blocks.insert(b->begin(), b->end());
  EXPECT_EQ(blocks.size(), 10u);
  EXPECT_EQ(*blocks.begin(), 0);
  EXPECT_EQ(*blocks.rbegin(), 9);
  EXPECT_FALSE(pool.Allocate(1));
  EXPECT_EQ(pool.Allocate(0)->size(), 0u);
  pool.Release(*a);
  EXPECT_EQ(pool.free(), 4);
  EXPECT_FALSE(pool.Allocate(5));
  EXPECT_EQ(pool.free(), 4);
  EXPECT_TRUE(pool.Allocate(4));
}

TEST(KvBlocksTest, ASharedBlockIsFreeWhenItsLastOwnerLetsGo) {
  KvBlocks pool(2);
  const int32_t block = pool.Allocate(1)->at(0);
  pool.Retain(block);
  EXPECT_EQ(pool.owners(block), 2);
  pool.Release(block);
  EXPECT_EQ(pool.free(), 1);
  pool.Release(block);
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(pool.used(), 0);
}

TEST(KvBlocksDeathTest, WrongAccountingEndsTheProcess) {
  KvBlocks pool(2);
  EXPECT_DEATH(pool.Release(0), "check failed");
  EXPECT_DEATH(pool.Release(2), "check failed");
  EXPECT_DEATH(pool.Retain(0), "check failed");
}

}  // namespace
}  // namespace specfabric::scheduler
