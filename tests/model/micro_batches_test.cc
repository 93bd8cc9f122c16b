#include "model/parallel/micro_batches.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "model/attention_plan.h"
#include "tests/model/group.h"

namespace specfabric::model {
namespace {

constexpr int kBlockSize = 4;
constexpr BatchLimits kLimits{.vocabulary = 1000, .blocks = 2000, .block_size = kBlockSize};

AttentionPlan PlanOf(const Batch& batch) {
  AttentionPlan plan;
  const absl::Status status = MakeAttentionPlan(batch, kLimits, &plan);
  EXPECT_TRUE(status.ok()) << status;
  return plan;
}

// What a row is, wherever it lies: its token, position, the slot it writes and those it sees.
struct Row {
  int32_t token, position, written;
  std::vector<int32_t> seen;
  bool wanted;
  bool operator==(const Row&) const = default;
};

void AppendRows(const Batch& batch, std::vector<Row>* rows) {
  const AttentionPlan plan = PlanOf(batch);
  for (int i = 0; i < batch.rows(); ++i) {
    const RowView& view = plan.rows[i];
    Row row{batch.tokens[i], batch.positions[i], view.write_slot, {}, false};
    for (int32_t s = 0; s < view.run_count; ++s) {
      row.seen.push_back(plan.slots[view.run_first + s]);
    }
    for (int32_t s = 0; s < view.extra_count; ++s) {
      row.seen.push_back(plan.extra[view.extra_first + s]);
    }
    for (int32_t wanted : batch.logit_rows) row.wanted |= wanted == i;
    rows->push_back(row);
  }
}

// Chains and trees of random sizes, in blocks of their own; some rows are not wanted.
Batch RandomBatch(std::mt19937& random) {
  Batch batch;
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int next_block = 0;
  for (int i = 1 + below(8); i > 0; --i) {
    const bool tree = below(2) == 0;
    const int rows = 1 + below(tree ? 12 : 90), kv_len = below(20);
    std::vector<int32_t> tokens(rows), blocks((kv_len + rows) / kBlockSize + 1), parents(rows);
    for (int32_t& token : tokens) token = below(1000);
    for (int32_t& block : blocks) block = next_block++;
    for (int node = 0; node < rows; ++node) parents[node] = node == 0 ? -1 : below(node);
    if (tree) {
      AddTree(&batch, tokens, parents, kv_len, blocks);
    } else {
      AddChain(&batch, tokens, kv_len, blocks);
    }
  }
  std::erase_if(batch.logit_rows, [&](int32_t) { return below(3) == 0; });
  return batch;
}

TEST(MicroBatchesTest, RowsWriteAndSeeWhatTheyDidInOnePass) {
  std::mt19937 random(1);
  bool cut = false;
  for (int round = 0; round < 300; ++round) {
    const Batch batch = RandomBatch(random);
    const int max_parts = 1 + static_cast<int>(random() % 6);
    const int min_rows = 1 + static_cast<int>(random() % 40);
    const std::vector<Batch> parts = SplitBatch(batch, max_parts, min_rows);
    ASSERT_GE(parts.size(), 1u);
    ASSERT_LE(parts.size(), static_cast<size_t>(max_parts));
    std::vector<Row> whole, pieces;
    AppendRows(batch, &whole);
    for (const Batch& part : parts) {
      EXPECT_GT(part.rows(), 0);
      AppendRows(part, &pieces);
    }
    ASSERT_EQ(pieces, whole) << "round " << round;
    cut |= parts.size() > 1;
  }
  EXPECT_TRUE(cut);
}

TEST(MicroBatchesTest, OneChainIsCutEvenly) {
  Batch batch;
  AddChain(&batch, std::vector<int32_t>(100, 7), 0, std::vector<int32_t>(25, 0));
  for (int i = 0; i < 25; ++i) batch.blocks[i] = i;
  const std::vector<Batch> parts = SplitBatch(batch, 3, 20);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].rows(), 34);
  EXPECT_EQ(parts[1].rows(), 34);
  EXPECT_EQ(parts[2].rows(), 32);
  EXPECT_EQ(parts[2].sequences[0].kv_len, 68);
}

TEST(MicroBatchesTest, FewRowsStayTogether) {
  Batch batch;
  AddChain(&batch, std::vector<int32_t>(19, 7), 0, {0, 1, 2, 3, 4});
  EXPECT_EQ(SplitBatch(batch, 4, 10).size(), 1u);
  EXPECT_EQ(SplitBatch(Batch(), 4, 10).size(), 1u);
}

TEST(MicroBatchesTest, NoTreeIsCut) {
  Batch batch;
  for (int i = 0; i < 6; ++i)
    AddTree(&batch, {1, 2, 3, 4, 5}, {-1, 0, 0, 1, 1}, 0, {2 * i, 2 * i + 1});
  const std::vector<Batch> parts = SplitBatch(batch, 4, 7);
  ASSERT_EQ(parts.size(), 3u);
  for (const Batch& part : parts) EXPECT_EQ(part.rows() % 5, 0);
}

}  // namespace
}  // namespace specfabric::model
