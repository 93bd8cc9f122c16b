// The steps that are measured before a group serves.

#include "scheduler/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

SchedulerOptions Large() {
  SchedulerOptions options;
  options.kv_blocks = 1000;
  options.vocabulary = 50;
  return options;
}

TEST(ProfileSizesTest, AscendAsFarAsTheOptionsAllow) {
  const std::vector<int32_t> sizes = ProfileSizes(Large());
  EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
  EXPECT_EQ(sizes.front(), 1);
  EXPECT_EQ(sizes.back(), 512);
  SchedulerOptions narrow = Large();
  narrow.max_step_tokens = 40;
  EXPECT_EQ(ProfileSizes(narrow).back(), 40);
  SchedulerOptions one = Large();
  one.max_sequences = 1;
  EXPECT_EQ(ProfileSizes(one).back(), one.max_tree_nodes) << "a sequence's largest tree";
  SchedulerOptions tight = Large();
  tight.kv_blocks = 3;  // of 16 slots: three trees of at most 8 rows, or one of 48
  EXPECT_EQ(ProfileSizes(tight).back(), 24);
}

// A fake group would find a block that two sequences write, or a row whose parent is not there.
TEST(ProfileStepTest, IsAPlanOfSoManyRowsOnBlocksOfItsOwn) {
  const SchedulerOptions options = Large();
  for (const int32_t rows : ProfileSizes(options)) {
    const StepPlan plan = ProfileStep(options, rows, 7);
    EXPECT_EQ(plan.step, 7u);
    ASSERT_EQ(plan.rows(), rows);
    EXPECT_EQ(plan.logit_rows.size(), static_cast<size_t>(rows));
    EXPECT_LE(static_cast<int32_t>(plan.sequences.size()), options.max_sequences);
    std::set<int32_t> blocks;
    int32_t next = 0;
    for (const PlanSequence& part : plan.sequences) {
      EXPECT_EQ(part.first_row, next);
      EXPECT_TRUE(part.samples);
      next += part.row_count;
      for (int32_t b = 0; b < part.block_count; ++b) {
        EXPECT_TRUE(blocks.insert(plan.blocks[part.first_block + b]).second) << "shared";
      }
      EXPECT_GE(part.block_count * options.block_size, part.row_count);
      for (int32_t row = 1; row < part.row_count; ++row) {
        EXPECT_EQ(plan.parents[part.first_row + row], row - 1);
      }
    }
    EXPECT_EQ(next, rows);
    EXPECT_LT(*blocks.rbegin(), options.kv_blocks);
    for (const base::TokenId token : plan.tokens) {
      EXPECT_TRUE(token >= 0 && token < options.vocabulary);
    }
  }
}

}  // namespace
}  // namespace specfabric::scheduler
