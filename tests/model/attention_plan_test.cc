#include "model/attention_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/model/group.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr BatchLimits kLimits{.vocabulary = 50, .blocks = 20, .block_size = 4};

// The slots that a row sees, in order.
std::vector<int32_t> Visible(const AttentionPlan& plan, int row) {
  const RowView& view = plan.rows[row];
  std::vector<int32_t> slots(plan.slots.begin() + view.run_first,
                             plan.slots.begin() + view.run_first + view.run_count);
  slots.insert(slots.end(), plan.extra.begin() + view.extra_first,
               plan.extra.begin() + view.extra_first + view.extra_count);
  return slots;
}

Batch MixedBatch() {
  Batch batch;
  AddChain(&batch, {1, 2, 3}, /*kv_len=*/2, {7, 3});
  AddTree(&batch, {4, 5, 6, 7}, {-1, 0, 0, 2}, /*kv_len=*/3, {10, 11});
  return batch;
}

TEST(AttentionPlanTest, ChainsAndTreesInPhysicalSlots) {
  AttentionPlan plan;
  ASSERT_TRUE(MakeAttentionPlan(MixedBatch(), kLimits, &plan).ok());
  ASSERT_EQ(plan.rows.size(), 7u);
  EXPECT_THAT(Visible(plan, 0), ElementsAre(28, 29, 30));
  EXPECT_THAT(Visible(plan, 2), ElementsAre(28, 29, 30, 31, 12));
  EXPECT_EQ(plan.rows[2].write_slot, 12);
  EXPECT_THAT(Visible(plan, 3), ElementsAre(40, 41, 42, 43));
  EXPECT_THAT(Visible(plan, 4), ElementsAre(40, 41, 42, 43, 44));
  EXPECT_THAT(Visible(plan, 5), ElementsAre(40, 41, 42, 43, 45));
  EXPECT_THAT(Visible(plan, 6), ElementsAre(40, 41, 42, 43, 45, 46));
  EXPECT_EQ(plan.rows[6].write_slot, 46);
  EXPECT_EQ(plan.max_visible, 6);
}

// Draft growth: a later level of a tree whose first nodes are in the cache already.
TEST(AttentionPlanTest, TreeContinues) {
  Batch batch;
  batch.mask_words = 4;
  batch.tokens = {1, 2};
  batch.positions = {5, 5};
  batch.ancestors = {0b10001, 0, 0, 0, 0b100010, 0, 0, 0};
  batch.sequences.push_back(
      {.kv_len = 3, .tree_first = 4, .row_count = 2, .block_count = 3, .causal = false});
  batch.blocks = {0, 1, 2};
  AttentionPlan plan;
  ASSERT_TRUE(MakeAttentionPlan(batch, kLimits, &plan).ok());
  EXPECT_THAT(Visible(plan, 0), ElementsAre(0, 1, 2, 3, 7));
  EXPECT_THAT(Visible(plan, 1), ElementsAre(0, 1, 2, 4, 8));
  EXPECT_EQ(plan.rows[1].write_slot, 8);
}

TEST(AttentionPlanTest, BadBatchesAreOneClearLine) {
  struct Case {
    std::function<void(Batch&)> damage;
    std::string says;
  };
  const std::vector<Case> cases = {
      {[](Batch& b) { b.tokens[1] = 50; }, "token 50; allowed: 0 to 49"},
      {[](Batch& b) { b.tokens[1] = -1; }, "token -1"},
      {[](Batch& b) { b.positions.pop_back(); }, "6 positions for 7 rows"},
      {[](Batch& b) { b.positions[0] = -2; }, "position -2"},
      {[](Batch& b) { b.ancestors.pop_back(); }, "6 mask words for 7 rows"},
      {[](Batch& b) { b.mask_words = 0; }, "mask words"},
      {[](Batch& b) { b.ancestors.clear(); }, "without ancestor masks"},
      {[](Batch& b) { b.ancestors[3] = 0; }, "node 0 does not see itself"},
      {[](Batch& b) { b.ancestors[4] = 0b111; }, "node 1 has ancestor 2"},
      {[](Batch& b) { b.ancestors[6] = uint64_t{1} << 63; }, "ancestor 63"},
      {[](Batch& b) {
         b.logit_rows = {0, 7};
       },
       "holds 7"},
      {[](Batch& b) {
         b.logit_rows = {2, 2};
       },
       "must ascend"},
      {[](Batch& b) { b.logit_rows = {-1}; }, "holds -1"},
      {[](Batch& b) { b.blocks[0] = 20; }, "block 20; allowed: 0 to 19"},
      {[](Batch& b) { b.blocks[2] = -1; }, "block -1"},
      {[](Batch& b) { b.sequences[0].kv_len = -1; }, "kv_len -1"},
      {[](Batch& b) { b.sequences[0].kv_len = 2147483647; }, "needs 2147483650 slots"},
      {[](Batch& b) { b.sequences[0].kv_len = 6; }, "needs 9 slots"},
      {[](Batch& b) { b.sequences[0].row_count = 8; }, "rows 0 + 8"},
      {[](Batch& b) { b.sequences[0].row_count = 2147483647; }, "rows 0 + 2147483647"},
      {[](Batch& b) { b.sequences[1].first_row = 4; }, "rows 4 + 4"},
      {[](Batch& b) { b.sequences[1].first_block = 3; }, "blocks 3 + 2"},
      {[](Batch& b) { b.sequences[1].block_count = 2147483647; }, "blocks 2 + 2147483647"},
      {[](Batch& b) { b.sequences[0].row_count = 2; }, "row 2 is in no sequence"},
      {[](Batch& b) { b.sequences[1].first_row = 2; }, "row 2 is in two sequences"},
      {[](Batch& b) {
         b.sequences[1].tree_first = 62;
         b.sequences[1].kv_len = -50;
       },
       "kv_len -50"},
  };
  for (const Case& bad : cases) {
    Batch batch = MixedBatch();
    bad.damage(batch);
    AttentionPlan plan;
    const absl::Status status = MakeAttentionPlan(batch, kLimits, &plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.says));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

TEST(AttentionPlanTest, TreesAreLimitedByTheirMasks) {
  Batch batch;
  batch.mask_words = 1;
  batch.tokens.assign(65, 1);
  batch.positions.assign(65, 0);
  batch.ancestors.assign(65, 1);
  for (int i = 0; i < 20; ++i) batch.blocks.push_back(i);
  batch.sequences.push_back({.row_count = 65, .block_count = 20, .causal = false});
  AttentionPlan plan;
  EXPECT_THAT(std::string(MakeAttentionPlan(batch, kLimits, &plan).message()),
              HasSubstr("65 nodes; allowed: 64"));
}

}  // namespace
}  // namespace specfabric::model
