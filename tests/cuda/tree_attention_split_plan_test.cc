// The host's part of split-KV attention, which needs no GPU: that a plan takes every leaf of every
// row's list once, and stays within the memory it is given.

#include "model/cuda/tree_attention_split_plan.h"

#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda/random_batch.h"

namespace specfabric::model::cuda {
namespace {

using ::testing::HasSubstr;

int32_t LeavesOf(int32_t slots) { return (slots + kLeafSlots - 1) / kLeafSlots; }

// Slots that each row of the batch sees, as batch.h says.
std::vector<int32_t> ListLengths(const Batch& batch) {
  std::vector<int32_t> lengths(batch.rows());
  for (const BatchSequence& s : batch.sequences) {
    for (int32_t i = 0; i < s.row_count; ++i) {
      int32_t& length = lengths[s.first_row + i];
      length = s.kv_len + (s.causal ? s.tree_first + i + 1 : 0);
      for (int32_t w = 0; !s.causal && w < batch.mask_words; ++w) {
        length += std::popcount(batch.ancestors[size_t(s.first_row + i) * batch.mask_words + w]);
      }
    }
  }
  return lengths;
}

// What is folded for a row and part, from the first to the last.
struct Folded {
  std::map<int32_t, std::pair<int32_t, int32_t>> pieces;  // by number: first leaf, leaves
};

class PlanCheck {
 public:
  PlanCheck(const SplitPlan& plan, const Batch& batch, const TreeAttentionRules& rules,
            const SplitCapacity& capacity)
      : plan_(plan),
        batch_(batch),
        rules_(rules),
        capacity_(capacity),
        lengths_(ListLengths(batch)) {}

  void Run() {
    EXPECT_LE(static_cast<int32_t>(plan_.items.size()), capacity_.items);
    for (const SplitItem& item : plan_.items) Take(item);
    ExpectWholeLists();
    for (const auto& [counter, items] : ended_) EXPECT_EQ(items, expected_[counter]) << counter;
  }

 private:
  void Take(const SplitItem& item) {
    const int32_t group = rules_.heads / rules_.kv_heads, lines = 16 * plan_.tiles;
    const int32_t parts = (item.rows * group + lines - 1) / lines;
    EXPECT_TRUE(parts == 1 || item.rows == 1);
    EXPECT_LT(item.part, std::max(parts, (group + lines - 1) / lines));
    const bool alone = item.items == 1;
    if (!alone) {
      EXPECT_EQ(item.first_leaf / kChunkLeaves, (item.first_leaf + item.leaves - 1) / kChunkLeaves);
      // Only what begins a chunk may have been folded.
      EXPECT_TRUE(item.leaves == 1 || item.first_leaf % kChunkLeaves == 0);
      const int32_t counter = item.counter + item.part;
      EXPECT_LT(counter, capacity_.counters);
      ++ended_[counter];
      EXPECT_TRUE(expected_.try_emplace(counter, item.items).first->second == item.items);
    }
    if (item.row == kSharedLeavesAndTails) ExpectAllTails(item);
    for (int32_t r = 0; r < item.rows; ++r) {
      if (item.row >= 0 && item.row != r) continue;
      Folded& folded = rows_[{item.first_row + r, item.part}];
      const int32_t leaves =
          item.row == kSharedLeavesAndTails ? LeavesOf(lengths_[item.first_row + r]) : item.leaves;
      const bool first = folded.pieces.try_emplace(item.piece, item.first_leaf, leaves).second;
      EXPECT_TRUE(first) << "row " << item.first_row + r << ", piece " << item.piece;
      if (alone) continue;
      const int32_t partial = item.first_partial + item.piece * item.rows + r;
      EXPECT_LT(partial, capacity_.partial_rows);
      EXPECT_TRUE(partials_.insert({partial, item.part}).second) << "partial row " << partial;
    }
  }

  void ExpectAllTails(const SplitItem& item) {
    EXPECT_EQ(item.items, 1);
    EXPECT_GT(item.shared_leaves, 0);
    int32_t leaves = item.shared_leaves;
    for (int32_t r = 0; r < item.rows; ++r) {
      leaves += LeavesOf(lengths_[item.first_row + r]) - item.shared_leaves;
    }
    EXPECT_EQ(item.leaves, leaves);
  }

  // A causal row's last leaves may have none of its slots, but of a later row's.
  void ExpectWholeLists() {
    const int32_t group = rules_.heads / rules_.kv_heads, lines = 16 * plan_.tiles;
    const int32_t parts = (group + lines - 1) / lines;
    EXPECT_EQ(rows_.size(), size_t(batch_.rows()) * parts);
    for (const auto& [row, folded] : rows_) {
      int32_t next_piece = 0, next_leaf = 0;
      for (const auto& [piece, leaves] : folded.pieces) {
        EXPECT_EQ(piece, next_piece++);
        EXPECT_EQ(leaves.first, next_leaf);
        next_leaf += leaves.second;
      }
      EXPECT_GE(next_leaf, LeavesOf(lengths_[row.first])) << "row " << row.first;
      EXPECT_LE(next_leaf, LeavesOf(lengths_[row.first] + 63)) << "row " << row.first;
    }
  }

  const SplitPlan& plan_;
  const Batch& batch_;
  const TreeAttentionRules& rules_;
  const SplitCapacity& capacity_;
  const std::vector<int32_t> lengths_;
  std::map<std::pair<int32_t, int32_t>, Folded> rows_;  // by row and part
  std::map<int32_t, int32_t> ended_, expected_;         // items, by counter
  std::set<std::pair<int32_t, int32_t>> partials_;      // with the part
};

TEST(SplitPlanTest, TakesEveryLeafOfEveryListOnce) {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    const BatchForm form = {.sequences = 1 + round % 9,
                            .block_size = round % 3 == 0 ? 1 : 16,
                            .blocks = 16384,
                            .mask_words = round % 2 == 0 ? 1 : 4,
                            .max_kv = round % 4 == 0 ? 40 : 1200,
                            .max_prefill = round % 5 * 30,
                            .max_tree = round % 7 * 9};
    const int32_t kv_heads = 1 + round % 2, group = std::vector<int>{1, 4, 7, 8, 70}[round % 5];
    TreeAttentionRules rules =
        RulesFor(form, kv_heads * group, kv_heads, std::vector<int>{1, 8, 132, 4000}[round % 4]);
    rules.fixed_grid = round % 3 == 1;
    const absl::StatusOr<SplitCapacity> capacity = SplitCapacityOf(rules);
    ASSERT_EQ(capacity.status(), absl::OkStatus());
    Batch batch = RandomBatch(rng, form);
    if (round % 4 >= 2) MakeBlocks(&batch);
    SplitPlan plan;
    ASSERT_EQ(MakeSplitPlan(batch, rules, *capacity, &plan), absl::OkStatus());
    SCOPED_TRACE(testing::Message() << "round " << round << ", group " << group << ", tiles "
                                    << plan.tiles << ", processors " << rules.processors);
    PlanCheck(plan, batch, rules, *capacity).Run();
    EXPECT_TRUE(!rules.fixed_grid || plan.tiles == capacity->tiles);
  }
}

// A batch of `sequences` sequences of as many rows each, after kv_len slots.
Batch EvenBatch(int32_t sequences, int32_t rows, int32_t kv_len, bool causal) {
  Batch batch;
  const int32_t blocks = (kv_len + rows + 15) / 16;
  for (int32_t i = 0; i < sequences; ++i) {
    batch.sequences.push_back({.kv_len = kv_len,
                               .first_row = batch.rows(),
                               .row_count = rows,
                               .first_block = i * blocks,
                               .block_count = blocks,
                               .causal = causal});
    for (int32_t row = 0; row < rows; ++row) {  // roots
      batch.tokens.push_back(0);
      batch.positions.push_back(kv_len);
      batch.ancestors.push_back(uint64_t{1} << row);
    }
  }
  batch.blocks.resize(size_t(sequences) * blocks);
  return batch;
}

SplitPlan PlanOf(const Batch& batch, TreeAttentionRules rules) {
  rules.max_rows = batch.rows();
  rules.max_sequences = static_cast<int32_t>(batch.sequences.size());
  rules.max_blocks = batch.sequences[0].block_count;
  const SplitCapacity capacity = *SplitCapacityOf(rules);
  SplitPlan plan;
  EXPECT_EQ(MakeSplitPlan(batch, rules, capacity, &plan), absl::OkStatus());
  PlanCheck(plan, batch, rules, capacity).Run();
  return plan;
}

constexpr TreeAttentionRules kLlama = {.heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 64,
                                       .blocks = 1 << 20,
                                       .block_size = 16,
                                       .processors = 132};

TEST(SplitPlanTest, CutsAsTheGpuNeeds) {
  // One row of 200 slots is walked whole; of 500, there is a block for each leaf.
  EXPECT_EQ(PlanOf(EvenBatch(1, 1, 199, true), kLlama).items.size(), 1u);
  EXPECT_EQ(PlanOf(EvenBatch(1, 1, 499, true), kLlama).items.size(), 8u);
  // 4 sequences of 8 rows and 4,096 slots: a block for each chunk.
  EXPECT_EQ(PlanOf(EvenBatch(4, 8, 4088, true), kLlama).items.size(), 4u * 2 * 8);
  // Their trees: and one for the tail of each row.
  EXPECT_EQ(PlanOf(EvenBatch(4, 8, 4088, false), kLlama).items.size(), 4u * 2 * 8 + 4u * 8);
  // 32 of them are enough as they are, also trees.
  EXPECT_EQ(PlanOf(EvenBatch(32, 8, 4088, true), kLlama).items.size(), 32u);
  EXPECT_EQ(PlanOf(EvenBatch(32, 8, 4088, false), kLlama).items.size(), 32u);
  // A prompt of 8,192 tokens: its tiles alone are enough.
  const SplitPlan prompt = PlanOf(EvenBatch(1, 8192, 0, true), kLlama);
  EXPECT_EQ(prompt.tiles, 4);
  EXPECT_EQ(prompt.items.size(), 8192u / 16);
}

// A tree of a single path needs no tails.
TEST(SplitPlanTest, ChainsAreCausal) {
  Batch batch = EvenBatch(2, 5, 200, false);
  for (size_t i = 0; i < batch.ancestors.size(); ++i) batch.ancestors[i] = (2u << i % 5) - 1;
  for (const SplitItem& item : PlanOf(batch, kLlama).items) {
    EXPECT_EQ(item.first_word, -1);
    EXPECT_EQ(item.visible, 201 + item.first_row % 5);
    EXPECT_EQ(item.row, -1);
  }
}

TEST(SplitPlanTest, WhatFindsNoRoomIsWalkedWhole) {
  TreeAttentionRules rules = kLlama;
  rules.heads = 1024;  // 2 partial rows of a processor's share
  rules.processors = 64;
  for (bool causal : {false, true}) {
    const SplitPlan plan =
        PlanOf(causal ? EvenBatch(3, 1, 40000, true) : EvenBatch(2, 2, 40000, false), rules);
    int32_t cut = 0, whole = 0;
    for (const SplitItem& item : plan.items) ++(item.items > 1 ? cut : whole);
    EXPECT_GT(cut, 0);
    EXPECT_GT(whole, 0);
  }
}

TEST(SplitPlanTest, PacksIntoOnePiece) {
  std::mt19937 rng(4);
  const BatchForm form = {.mask_words = 2};
  const TreeAttentionRules rules = RulesFor(form, 8, 2, 132);
  const SplitCapacity capacity = *SplitCapacityOf(rules);
  const Batch batch = RandomBatch(rng, form);
  SplitPlan plan;
  ASSERT_EQ(MakeSplitPlan(batch, rules, capacity, &plan), absl::OkStatus());
  std::vector<std::byte> memory(capacity.plan_bytes);
  EXPECT_LE(PackSplitPlan(plan, batch, memory.data()), memory.size());
  SplitHeader header;
  std::memcpy(&header, memory.data(), sizeof(header));
  ASSERT_EQ(header.items, static_cast<int32_t>(plan.items.size()));
  EXPECT_EQ(header.mask_words, 2);
  EXPECT_EQ(std::memcmp(&memory[sizeof(header)], plan.items.data(),
                        plan.items.size() * sizeof(SplitItem)),
            0);
  EXPECT_EQ(std::memcmp(&memory[header.ancestors], batch.ancestors.data(),
                        batch.ancestors.size() * sizeof(uint64_t)),
            0);
  EXPECT_EQ(std::memcmp(&memory[header.blocks], batch.blocks.data(),
                        batch.blocks.size() * sizeof(int32_t)),
            0);
}

TEST(SplitPlanTest, RefusesWhatItCannotPlan) {
  TreeAttentionRules rules = kLlama;
  rules.max_rows = rules.max_sequences = 4;
  rules.max_blocks = 1 << 28;
  EXPECT_THAT(std::string(SplitCapacityOf(rules).status().message()),
              HasSubstr("4294967296 slots a sequence"));
  rules.max_blocks = 64;
  ASSERT_EQ(SplitCapacityOf(rules).status(), absl::OkStatus());
  SplitPlan plan;
  const absl::Status refused =
      MakeSplitPlan(EvenBatch(1, 5, 9, true), rules, *SplitCapacityOf(rules), &plan);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("5 rows; allowed: 4"));
  rules.head_dim = 96;
  EXPECT_EQ(SplitCapacityOf(rules).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::model::cuda
