// The host's part of tree attention, which needs no GPU: that a plan has every row meet every slot
// once, and stays within the memory it is given.

#include "model/cuda/tree_attention_plan.h"

#include <cstring>
#include <set>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda/random_batch.h"

namespace specfabric::model::cuda {
namespace {

using ::testing::HasSubstr;

// Items of one tile: each part with each chunk, once.
void ExpectWholeTile(const TreeAttentionPlan& plan, const TreeAttentionRules& rules, int32_t t,
                     const std::vector<std::pair<int32_t, int32_t>>& items) {
  const AttentionTile& tile = plan.tiles[t];
  const int32_t group = rules.heads / rules.kv_heads;
  const int32_t parts = (tile.rows * group + plan.tile_q - 1) / plan.tile_q;
  const int32_t chunks = plan.partial ? (tile.walk + plan.chunk - 1) / plan.chunk : 1;
  EXPECT_TRUE(plan.partial || tile.walk <= plan.chunk);
  EXPECT_TRUE(parts == 1 || tile.rows == 1);
  const std::set<std::pair<int32_t, int32_t>> once(items.begin(), items.end());
  EXPECT_EQ(once.size(), items.size());
  EXPECT_EQ(static_cast<int32_t>(items.size()), parts * chunks);
  for (const auto& [part, chunk] : once) {
    EXPECT_LT(part, parts);
    EXPECT_LT(chunk, chunks);
  }
}

// That the partial rows a tile writes are those that its rows are merged from.
void ExpectMerged(const TreeAttentionPlan& plan, const AttentionWave& wave, int32_t t) {
  const AttentionTile& tile = plan.tiles[t];
  const int32_t chunks = (tile.walk + plan.chunk - 1) / plan.chunk;
  for (int32_t r = 0; r < tile.rows; ++r) {
    const int32_t at = wave.first_merge + plan.query_first[t] + r - wave.first_row;
    EXPECT_EQ(plan.merge_first[at], plan.output_first[t] + r * chunks);
    EXPECT_EQ(plan.merge_first[at + 1], plan.output_first[t] + (r + 1) * chunks);
    EXPECT_LE(plan.merge_first[at + 1], wave.partial_rows);
  }
}

// The tiles are the batch's rows in order, and see what batch.h says at most.
void ExpectAllRows(const TreeAttentionPlan& plan, const Batch& batch) {
  std::vector<const BatchSequence*> of_row(batch.rows());
  for (const BatchSequence& s : batch.sequences) {
    std::fill_n(of_row.begin() + s.first_row, s.row_count, &s);
  }
  int32_t row = 0;
  for (size_t t = 0; t < plan.tiles.size(); ++t) {
    const AttentionTile& tile = plan.tiles[t];
    EXPECT_EQ(plan.query_first[t], row);
    EXPECT_GT(tile.rows, 0);
    const BatchSequence& s = *of_row[row];
    EXPECT_EQ(of_row[row + tile.rows - 1], &s);
    EXPECT_EQ(plan.block_first[t], s.first_block);
    EXPECT_EQ(tile.prefix, s.kv_len);
    EXPECT_EQ(tile.first_node, s.tree_first + row - s.first_row);
    EXPECT_EQ(tile.walk, s.kv_len + tile.first_node + tile.rows);  // its last row's own slot
    EXPECT_EQ(tile.first_word, s.causal ? -1 : row * batch.mask_words);
    row += tile.rows;
  }
  EXPECT_EQ(row, batch.rows());
}

// Row i of a sequence sees slots as batch.h says it does.
bool ShouldSee(const Batch& batch, const BatchSequence& s, int32_t i, int32_t slot) {
  const int32_t node = slot - s.kv_len;
  if (node < 0) return true;
  if (node >= s.tree_first + s.row_count) return false;
  if (s.causal) return node <= i;
  const size_t words = size_t(s.first_row + i) * batch.mask_words;
  return (batch.ancestors[words + node / 64] >> node % 64 & 1) != 0;
}

void ExpectMasks(const TreeAttentionPlan& plan, const Batch& batch) {
  std::vector<int32_t> tile_of(batch.rows());
  for (size_t t = 0; t < plan.tiles.size(); ++t) {
    std::fill_n(tile_of.begin() + plan.query_first[t], plan.tiles[t].rows, t);
  }
  for (const BatchSequence& s : batch.sequences) {
    for (int32_t i = 0; i < s.row_count; ++i) {
      const int32_t t = tile_of[s.first_row + i];
      const int32_t row = s.first_row + i - plan.query_first[t];
      const int32_t end = s.kv_len + s.tree_first + s.row_count;
      for (int32_t slot = std::max(0, s.kv_len - 2); slot < end; ++slot) {
        const bool sees =
            slot < plan.tiles[t].walk && Sees(plan.tiles[t], batch.ancestors.data(), row, slot);
        EXPECT_EQ(sees, ShouldSee(batch, s, i, slot)) << "row " << i << " slot " << slot;
      }
      EXPECT_FALSE(Sees(plan.tiles[t], batch.ancestors.data(), plan.tiles[t].rows, 0));
    }
  }
}

void ExpectGood(const TreeAttentionPlan& plan, const Batch& batch, const TreeAttentionRules& rules,
                const TreeAttentionCapacity& capacity) {
  ExpectAllRows(plan, batch);
  ExpectMasks(plan, batch);
  std::vector<std::vector<std::pair<int32_t, int32_t>>> items(plan.tiles.size());
  int32_t next_item = 0, next_row = 0;
  for (const AttentionWave& wave : plan.waves) {
    EXPECT_EQ(wave.first_item, next_item);
    EXPECT_EQ(wave.first_row, next_row);
    if (plan.partial) {
      EXPECT_LE(wave.partial_rows, capacity.partial_rows);
      EXPECT_EQ(plan.merge_first[wave.first_merge + wave.rows], wave.partial_rows);
    }
    for (int32_t i = wave.first_item; i < wave.first_item + wave.items; ++i) {
      const int32_t t = plan.item_tile[i];
      EXPECT_GE(plan.query_first[t], wave.first_row);
      EXPECT_LE(plan.query_first[t] + plan.tiles[t].rows, wave.first_row + wave.rows);
      items[t].emplace_back(plan.item_part[i], plan.item_chunk[i]);
      if (plan.partial) {
        ExpectMerged(plan, wave, t);
      } else {
        EXPECT_EQ(plan.output_first[t], plan.query_first[t]);
      }
    }
    next_item += wave.items;
    next_row += wave.rows;
  }
  EXPECT_EQ(next_item, static_cast<int32_t>(plan.item_tile.size()));
  EXPECT_EQ(next_row, batch.rows());
  for (size_t t = 0; t < items.size(); ++t) {
    ExpectWholeTile(plan, rules, static_cast<int32_t>(t), items[t]);
  }
  EXPECT_LE(static_cast<int32_t>(plan.tiles.size()), capacity.tiles);
  EXPECT_LE(next_item, capacity.items);
  EXPECT_LE(static_cast<int32_t>(plan.merge_first.size()), capacity.merges);
  EXPECT_LE(LayoutOf(plan, batch).size, LargestLayout(rules, capacity).size);
}

TEST(TreeAttentionPlanTest, EveryRowMeetsEverySlotOnce) {
  std::mt19937 rng(1);
  for (int round = 0; round < 400; ++round) {
    BatchForm form;
    form.sequences = 1 + static_cast<int32_t>(rng() % 20);
    form.block_size = std::vector<int32_t>{1, 16, 32}[rng() % 3];
    form.blocks = 100'000;
    form.mask_words = rng() % 2 == 0 ? 1 : 4;
    form.max_kv = std::vector<int32_t>{0, 300, 4000}[rng() % 3];
    form.max_prefill = std::vector<int32_t>{0, 60, 300}[rng() % 3];
    form.max_tree = std::vector<int32_t>{0, 8, 64}[rng() % 3];
    const int32_t kv_heads = 1 + static_cast<int32_t>(rng() % 8);
    const int32_t group = std::vector<int32_t>{1, 4, 7, 8, 71, 200}[rng() % 6];
    TreeAttentionRules rules = RulesFor(form, group * kv_heads, kv_heads);
    rules.batch_invariant = rng() % 2 == 0;
    rules.fixed_grid = rng() % 2 == 0;
    rules.chunk = 128 << rng() % 4;
    const absl::StatusOr<TreeAttentionCapacity> capacity = CapacityOf(rules);
    ASSERT_EQ(capacity.status(), absl::OkStatus());
    TreeAttentionPlan plan;
    for (int pass = 0; pass < 2; ++pass) {
      const Batch batch = RandomBatch(rng, form);
      ASSERT_EQ(MakeTreeAttentionPlan(batch, rules, *capacity, &plan), absl::OkStatus());
      SCOPED_TRACE(testing::Message() << "round " << round << " tile " << plan.tile_q << " chunk "
                                      << plan.chunk << " group " << group);
      ExpectGood(plan, batch, rules, *capacity);
      if (rules.fixed_grid) {
        EXPECT_TRUE(plan.partial);
        EXPECT_EQ(plan.waves.size(), 1u);
        EXPECT_EQ(plan.tile_q, capacity->tile_q);
      }
      if (rules.batch_invariant) {
        EXPECT_EQ(plan.tile_q, 64);
        EXPECT_EQ(plan.chunk, rules.chunk);
      }
    }
  }
}

TEST(TreeAttentionPlanTest, LongWalksOfFewRowsAreCut) {
  BatchForm form = {.sequences = 1, .max_kv = 0, .max_prefill = 0, .max_tree = 0};
  TreeAttentionRules rules = RulesFor(form, 32, 8);
  rules.max_blocks = form.blocks;
  const TreeAttentionCapacity capacity = *CapacityOf(rules);
  std::mt19937 rng(2);
  Batch batch = RandomBatch(rng, form);
  batch.blocks.assign(2048, 7);
  batch.sequences[0].block_count = 2048;
  TreeAttentionPlan plan;
  ASSERT_EQ(MakeTreeAttentionPlan(batch, rules, capacity, &plan), absl::OkStatus());
  EXPECT_FALSE(plan.partial);
  batch.sequences[0].kv_len = 30'000;
  ASSERT_EQ(MakeTreeAttentionPlan(batch, rules, capacity, &plan), absl::OkStatus());
  EXPECT_TRUE(plan.partial);
  EXPECT_EQ(plan.tile_q, 16);
  EXPECT_GT(plan.item_tile.size(), 20u);
  EXPECT_LE(plan.item_tile.size(), 33u);  // two blocks of each of 132 processors, over 8 KV heads
}

TEST(TreeAttentionPlanTest, WhatIsTooLargeForOneWaveTakesSeveral) {
  BatchForm form = {.sequences = 4, .max_kv = 0, .max_prefill = 500, .max_tree = 0};
  TreeAttentionRules rules = RulesFor(form, 64, 8);
  rules.head_dim = 128;
  rules.max_blocks = 1024;
  rules.batch_invariant = true;
  rules.chunk = 128;
  const TreeAttentionCapacity capacity = *CapacityOf(rules);
  std::mt19937 rng(3);
  Batch batch = RandomBatch(rng, form);
  batch.blocks.assign(4096, 3);
  for (BatchSequence& s : batch.sequences) {
    s.first_block = 0;
    s.block_count = 1000;
    s.kv_len = 15'000;
  }
  TreeAttentionPlan plan;
  ASSERT_EQ(MakeTreeAttentionPlan(batch, rules, capacity, &plan), absl::OkStatus());
  EXPECT_GT(plan.waves.size(), 3u);
  ExpectGood(plan, batch, rules, capacity);
}

TEST(TreeAttentionPlanTest, PacksIntoOnePiece) {
  std::mt19937 rng(4);
  BatchForm form;
  TreeAttentionRules rules = RulesFor(form, 8, 2);
  for (bool fixed : {false, true}) {
    rules.fixed_grid = fixed;
    const TreeAttentionCapacity capacity = *CapacityOf(rules);
    const Batch batch = RandomBatch(rng, form);
    TreeAttentionPlan plan;
    ASSERT_EQ(MakeTreeAttentionPlan(batch, rules, capacity, &plan), absl::OkStatus());
    const PlanLayout at = fixed ? LargestLayout(rules, capacity) : LayoutOf(plan, batch);
    std::vector<std::byte> memory(at.size, std::byte{0xab});
    EXPECT_LE(Pack(plan, batch, at, memory.data()), at.size);
    const auto ints = [&memory](size_t offset, size_t count) {
      std::vector<int32_t> values(count);
      std::memcpy(values.data(), &memory[offset], count * sizeof(int32_t));
      return values;
    };
    EXPECT_EQ(ints(at.chunk, 1)[0], plan.chunk);
    EXPECT_EQ(ints(at.rows, 1)[0], batch.rows());
    EXPECT_EQ(ints(at.query_first, plan.tiles.size()), plan.query_first);
    EXPECT_EQ(ints(at.output_first, plan.tiles.size()), plan.output_first);
    EXPECT_EQ(ints(at.block_first, plan.tiles.size()), plan.block_first);
    EXPECT_EQ(ints(at.block_first, at.tile_count + 1).back(), int32_t(batch.blocks.size()));
    EXPECT_EQ(ints(at.item_tile, plan.item_tile.size()), plan.item_tile);
    EXPECT_EQ(ints(at.item_part, plan.item_part.size()), plan.item_part);
    EXPECT_EQ(ints(at.item_chunk, plan.item_chunk.size()), plan.item_chunk);
    EXPECT_EQ(ints(at.merge_first, plan.merge_first.size()), plan.merge_first);
    EXPECT_EQ(ints(at.blocks, batch.blocks.size()), batch.blocks);
    EXPECT_EQ(std::memcmp(&memory[at.tiles], plan.tiles.data(),
                          plan.tiles.size() * sizeof(AttentionTile)),
              0);
    EXPECT_EQ(std::memcmp(&memory[at.ancestors], batch.ancestors.data(),
                          batch.ancestors.size() * sizeof(uint64_t)),
              0);
    for (int32_t i = 0; i < at.item_count; ++i) {
      EXPECT_EQ(memory[at.item_valid + i], std::byte(i < int32_t(plan.item_tile.size())));
    }
  }
}

TEST(TreeAttentionPlanTest, RefusesShapesWithoutAKernel) {
  const TreeAttentionRules good = RulesFor(BatchForm{}, 8, 2);
  ASSERT_EQ(CapacityOf(good).status(), absl::OkStatus());
  const auto refusal = [&good](auto change) {
    TreeAttentionRules rules = good;
    change(rules);
    const absl::Status status = CapacityOf(rules).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& r) { r.heads = 7; }), HasSubstr("7 heads over 2 KV heads"));
  EXPECT_THAT(refusal([](auto& r) { r.head_dim = 96; }), HasSubstr("allowed: 64 and 128"));
  EXPECT_THAT(refusal([](auto& r) { r.max_rows = 0; }), HasSubstr("0 rows"));
  EXPECT_THAT(refusal([](auto& r) { r.max_blocks = 1 << 28; }), HasSubstr("allowed: 2147483647"));
  EXPECT_THAT(refusal([](auto& r) { r.batch_invariant = true, r.chunk = 100; }),
              HasSubstr("multiples of 128"));
}

TEST(TreeAttentionPlanTest, RefusesBatchesThatCannotBe) {
  const BatchForm form = {.sequences = 3, .max_prefill = 0, .max_tree = 0};
  const TreeAttentionRules rules = RulesFor(form, 8, 2);
  const TreeAttentionCapacity capacity = *CapacityOf(rules);
  const auto refusal = [&](auto change) {
    std::mt19937 rng(5);
    Batch batch = RandomBatch(rng, form);
    std::sort(batch.sequences.begin(), batch.sequences.end(),
              [](const auto& a, const auto& b) { return a.first_row < b.first_row; });
    change(batch);
    TreeAttentionPlan plan;
    const absl::Status status = MakeTreeAttentionPlan(batch, rules, capacity, &plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](Batch& b) { b.tokens.resize(9), b.ancestors.resize(9); }),
              HasSubstr("9 rows; allowed: 3"));
  EXPECT_THAT(refusal([](Batch& b) { b.blocks[0] = 4096; }), HasSubstr("block 4096"));
  EXPECT_THAT(refusal([](Batch& b) { b.mask_words = 2; }), HasSubstr("2 mask words a row"));
  EXPECT_THAT(refusal([](Batch& b) { b.ancestors.pop_back(); }), HasSubstr("2 mask words for 3"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences[1].first_row = 0; }), HasSubstr("is in two"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences.erase(b.sequences.begin()); }),
              HasSubstr("row 0 is in no sequence"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences.pop_back(); }), HasSubstr("in no sequence"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences[0].row_count = 4; }), HasSubstr("0 + 4 of 3"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences[0].kv_len += 100'000; }), HasSubstr("slots"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences[0].causal = false; }),
              HasSubstr("row 0 is node 0, but the last that it sees is -1"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences[0].block = true; }), HasSubstr("without masks"));
  EXPECT_THAT(refusal([](Batch& b) {
                b.sequences[0].block = true;
                b.sequences[0].causal = false;
              }),
              HasSubstr("rows of a block; allowed: of trees and chains"));
  EXPECT_THAT(refusal([](Batch& b) { b.sequences[0].causal = false, b.ancestors[0] = 3; }),
              HasSubstr("the last that it sees is 1"));
  EXPECT_THAT(refusal([](Batch& b) {
                b.sequences[0] = {.tree_first = 64, .row_count = 1, .block_count = 9};
                b.sequences[0].causal = false;
                b.blocks.resize(std::max<size_t>(9, b.blocks.size()));
              }),
              HasSubstr("a tree of 65 nodes; allowed: 64"));
}

}  // namespace
}  // namespace specfabric::model::cuda
