// Split-KV attention against sums in double precision, and against itself: the bits of a row,
// however its list is cut and whatever is beside it.

#include "model/cuda/tree_attention_split.h"

#include <cstdlib>
#include <cstring>

#include "tests/cuda/device.h"
#include "tests/cuda/tree_attention_case.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Check;
using base::cuda::DeviceTest;

using Bits = std::vector<uint16_t>;

// Processors of a GPU for which lists are cut into leaves; into chunks; and, where there are eight
// items, not at all.
constexpr int32_t kLeaves = 100'000, kChunks = 4, kWhole = 1;
Bits Attend(const Case& c, TreeAttentionConfig config, int32_t processors) {
  config.rules.processors = processors;
  return Attended<SplitAttention>(c, config);
}
Bits Attend(const Case& c, int32_t processors = kChunks) {
  return Attend(c, ConfigFor(c, c.batch.rows(), static_cast<int32_t>(c.batch.sequences.size())),
                processors);
}

// A batch of one sequence of `rows` rows, which sees kv_len slots before them.
BatchForm OneSequence(int32_t slots) {
  return {.sequences = 1,
          .block_size = 16,
          .blocks = slots / 16 + 40,
          .mask_words = 1,
          .max_kv = 0,
          .max_prefill = 0,
          .max_tree = 0};
}
Case CausalCase(std::mt19937& rng, const Shape& shape, int32_t kv_len, int32_t rows) {
  Case c = {.shape = shape, .batch = RandomBatch(rng, OneSequence(kv_len + rows))};
  BatchSequence& s = c.batch.sequences[0];
  s.kv_len = kv_len;
  s.row_count = rows;
  s.block_count = (kv_len + rows + 15) / 16;
  c.batch.tokens.resize(rows);
  c.batch.positions.resize(rows);
  c.batch.ancestors.assign(rows, 0);
  c.batch.blocks.resize(s.block_count);
  std::iota(c.batch.blocks.begin(), c.batch.blocks.end(), 0);
  std::shuffle(c.batch.blocks.begin(), c.batch.blocks.end(), rng);
  FillCase(rng, OneSequence(kv_len + rows), &c);
  return c;
}

class SplitAttentionTest : public DeviceTest {
 protected:
  std::mt19937 rng_{1};
};

TEST_F(SplitAttentionTest, SeesWhatTheBatchSays) {
  struct Setup {
    int32_t group, block_size, mask_words, sequences, max_kv, max_prefill, max_tree;
  };
  const std::vector<Setup> setups = {{1, 16, 1, 4, 200, 40, 20}, {4, 1, 4, 3, 130, 20, 200},
                                     {7, 32, 1, 3, 150, 12, 30}, {8, 16, 4, 2, 100, 50, 40},
                                     {8, 32, 1, 1, 1500, 0, 0},  {7, 16, 1, 1, 1200, 1, 8},
                                     {4, 32, 1, 2, 0, 130, 64},  {20, 16, 4, 2, 90, 4, 10},
                                     {1, 1, 1, 6, 70, 0, 0},     {70, 16, 1, 2, 80, 2, 2}};
  for (AttentionType type : {AttentionType::kFloat16, AttentionType::kBFloat16}) {
    for (int32_t head_dim : {64, 128}) {
      for (size_t i = 0; i < setups.size(); ++i) {
        const Setup& setup = setups[i];
        const Shape shape = {.type = type,
                             .head_dim = head_dim,
                             .kv_heads = 1 + int32_t(i % 2),
                             .group = setup.group};
        const BatchForm form = {.sequences = setup.sequences,
                                .block_size = setup.block_size,
                                .blocks = 4096 / setup.block_size + 64,
                                .mask_words = setup.mask_words,
                                .max_kv = setup.max_kv,
                                .max_prefill = setup.max_prefill,
                                .max_tree = setup.max_tree};
        SCOPED_TRACE(testing::Message()
                     << (type == AttentionType::kFloat16 ? "float16" : "bfloat16") << ", head size "
                     << head_dim << ", group " << setup.group << ", blocks of "
                     << setup.block_size);
        Case c = RandomCase(rng_, shape, form);
        if (i % 2 == (head_dim == 64)) MakeBlocks(&c.batch);
        const int32_t processors[] = {kLeaves, kChunks, kWhole};
        ExpectNear(c, Attend(c, processors[i % 3]));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Lists that end before, at and behind the borders of tensor cores' slots, of leaves and of chunks.
TEST_F(SplitAttentionTest, TakesListsOfEveryLength) {
  const std::vector<int32_t> lengths = {1,  2,   15,  16,  17,  48,  63,  64,
                                        65, 127, 128, 129, 511, 512, 513, 1089};
  int32_t turn = 0;
  for (int32_t length : lengths) {
    for (int32_t group : {1, 4, 7, 8}) {
      const Shape shape = {
          .head_dim = turn % 2 == 0 ? 64 : 128, .kv_heads = 1 + turn / 2 % 2, .group = group};
      SCOPED_TRACE(testing::Message()
                   << length << " slots, group " << group << ", head size " << shape.head_dim);
      const Case c = CausalCase(rng_, shape, length - 1, 1);
      const Bits leaves = Attend(c, kLeaves);
      ExpectNear(c, leaves);
      EXPECT_EQ(Attend(c, kChunks), leaves);
      if (HasFailure()) return;
      ++turn;
    }
  }
}

// In leaves, chunks and as a whole; in launches for one batch and for every one of a graph; and in
// whatever order the emulator runs threads, which differs from launch to launch.
TEST_F(SplitAttentionTest, HoweverListsAreCutTheBitsAreTheSame) {
  for (int32_t group : {4, 7}) {
    const Shape shape = {.head_dim = group == 4 ? 64 : 128, .kv_heads = 2, .group = group};
    const BatchForm form = {.sequences = 4,
                            .blocks = 512,
                            .mask_words = 4,
                            .max_kv = 700,
                            .max_prefill = 60,
                            .max_tree = 20};
    const Case c = RandomCase(rng_, shape, form);
    TreeAttentionConfig config = ConfigFor(c, c.batch.rows(), 4);
    const Bits expected = Attend(c, config, kChunks);
    EXPECT_EQ(Attend(c, config, kChunks), expected);
    setenv("EMULATED_BLOCKS_REVERSED", "", /*overwrite=*/1);  // another block of a tile ends last
    EXPECT_EQ(Attend(c, config, kChunks), expected);
    unsetenv("EMULATED_BLOCKS_REVERSED");
    EXPECT_EQ(Attend(c, config, kLeaves), expected);
    EXPECT_EQ(Attend(c, config, kWhole), expected);
    config.rules.fixed_grid = true;
    EXPECT_EQ(Attend(c, config, kChunks), expected);
  }
  const Case longer = CausalCase(rng_, {.head_dim = 64, .kv_heads = 8, .group = 1}, 1100, 3);
  const Bits expected = Attend(longer, kWhole);
  ExpectNear(longer, expected);
  EXPECT_EQ(Attend(longer, kChunks), expected);
  EXPECT_EQ(Attend(longer, kLeaves), expected);
}

TEST_F(SplitAttentionTest, RowsHaveTheSameBitsInEveryBatch) {
  for (int32_t group : {1, 4, 7, 8}) {
    const Shape shape = {.head_dim = group % 2 == 0 ? 64 : 128, .kv_heads = 1, .group = group};
    const BatchForm form = {.sequences = 5,
                            .blocks = 512,
                            .mask_words = 2,
                            .max_kv = 300,
                            .max_prefill = 70,
                            .max_tree = 30};
    const Case c = RandomCase(rng_, shape, form);
    const Bits together = Attend(c);
    const size_t width = size_t(shape.heads()) * shape.head_dim;
    for (const BatchSequence& s : c.batch.sequences) {
      for (int32_t drop : {0, s.row_count / 3, s.row_count - 1}) {
        const Bits alone = Attend(Alone(c, s, drop), drop % 2 == 0 ? kLeaves : kChunks);
        const size_t first = size_t(s.first_row + drop) * width;
        EXPECT_EQ(std::memcmp(alone.data(), &together[first], alone.size() * sizeof(uint16_t)), 0)
            << "rows from " << drop << " of " << s.row_count << ", kv_len " << s.kv_len
            << (s.causal ? "" : ", a tree") << ", group " << group;
      }
    }
  }
}

// The rows of a tree's path as a causal chunk, whose slots lie one after the other.
TEST_F(SplitAttentionTest, ATreesPathHasTheBitsOfAChain) {
  for (int32_t kv_len : {5, 60, 200, 510}) {
    const Shape shape = {.kv_heads = 2, .group = 4};
    Case tree = CausalCase(rng_, shape, kv_len, 9);
    BatchSequence& s = tree.batch.sequences[0];
    s.causal = false;
    const int32_t parents[] = {-1, 0, 0, 1, 2, 2, 4, 4, 7};
    for (int32_t i = 0; i < 9; ++i) {
      tree.batch.ancestors[i] =
          (parents[i] < 0 ? 0 : tree.batch.ancestors[parents[i]]) | uint64_t{1} << i;
    }
    // As MoveKv does once the path is accepted.
    const std::vector<int32_t> path = {0, 2, 4, 7, 8};
    Case chain = tree;
    BatchSequence& moved = chain.batch.sequences[0];
    moved.causal = true;
    moved.row_count = static_cast<int32_t>(path.size());
    chain.batch.tokens.resize(path.size());
    chain.batch.ancestors.resize(path.size());
    const size_t width = size_t(shape.heads()) * shape.head_dim;
    const size_t stride = size_t(shape.kv_heads) * shape.head_dim;
    for (size_t i = 0; i < path.size(); ++i) {
      std::copy_n(&tree.queries[path[i] * width], width, &chain.queries[i * width]);
      const int64_t from = tree.Slot(s, kv_len + path[i]);
      const int64_t to = chain.Slot(moved, kv_len + static_cast<int32_t>(i));
      std::copy_n(&tree.keys[from * stride], stride, &chain.keys[to * stride]);
      std::copy_n(&tree.values[from * stride], stride, &chain.values[to * stride]);
    }
    chain.queries.resize(path.size() * width);
    const Bits of_tree = Attend(tree), of_chain = Attend(chain);
    ExpectNear(tree, of_tree);
    for (size_t i = 0; i < path.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(&of_chain[i * width], &of_tree[path[i] * width], width * sizeof(uint16_t)), 0)
          << "node " << path[i] << ", kv_len " << kv_len;
    }
  }
}

// A token whose keys and values are NaN spoils the rows that see it, and no other.
TEST_F(SplitAttentionTest, WhatIsNotSeenChangesNothing) {
  const Shape shape = {.head_dim = 64, .kv_heads = 1, .group = 4};
  Case c = CausalCase(rng_, shape, 100, 6);
  c.batch.sequences[0].causal = false;
  const uint64_t masks[] = {1, 3, 5, 11, 21, 37};  // 1 and 2 below 0; 3 below 1; 4 and 5 below 2
  std::copy_n(masks, 6, c.batch.ancestors.begin());
  const Bits before = Attend(c);
  const size_t stride = shape.head_dim, width = size_t(shape.group) * shape.head_dim;
  const int64_t slot = c.Slot(c.batch.sequences[0], 102);
  std::fill_n(&c.keys[slot * stride], stride, kNan);
  std::fill_n(&c.values[slot * stride], stride, kNan);
  const Bits after = Attend(c);
  for (int32_t row = 0; row < 6; ++row) {
    const bool sees = (masks[row] >> 2 & 1) != 0;
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      ASSERT_EQ(std::isnan(Wide(shape.type, after[i])), sees) << "row " << row;
      ASSERT_TRUE(sees || after[i] == before[i]) << "row " << row;
    }
  }
}

TEST_F(SplitAttentionTest, OneCaptureServesEveryBatch) {
  const Shape shape = {.head_dim = 64, .kv_heads = 2, .group = 4};
  constexpr int32_t kSequences = 4, kRows = 16;
  const auto form_of = [](int32_t sequences, int32_t max_kv) {
    return BatchForm{.sequences = sequences,
                     .blocks = 512,
                     .max_kv = max_kv,
                     .max_prefill = kRows / kSequences,
                     .max_tree = kRows / kSequences};
  };
  const Case largest = RandomCase(rng_, shape, form_of(kSequences, 900));
  TreeAttentionConfig config = ConfigFor(largest, kRows, kSequences);
  config.rules.fixed_grid = true;
  config.rules.processors = 16;  // few sequences in leaves, more in chunks
  // Twice: the first launch leaves the counters as it found them.
  ExpectOneCaptureServes<SplitAttention>(largest, config, kRows, 6, 2, [&](int round) {
    return RandomCase(rng_, shape, form_of(1 + round % kSequences, 30 << round));
  });
}

TEST_F(SplitAttentionTest, RefusesWhatItCannotRun) {
  const Case c = CausalCase(rng_, Shape{.head_dim = 64}, 20, 2);
  TreeAttentionConfig config = ConfigFor(c, 2, 1);
  absl::StatusOr<SplitAttention> attention = SplitAttention::Create(config);
  ASSERT_EQ(attention.status(), absl::OkStatus());
  OnDevice device(c);
  LayerAttention layer = device.Layer();
  EXPECT_EQ(attention->Run(layer, nullptr).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(attention->Plan(c.batch, nullptr), absl::OkStatus());
  layer.out = device.out.data() + 1;
  EXPECT_EQ(attention->Run(layer, nullptr).code(), absl::StatusCode::kInvalidArgument);
  config.rules.head_dim = 96;
  EXPECT_EQ(SplitAttention::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
  config.rules.head_dim = 64;
  config.scale = INFINITY;
  EXPECT_EQ(SplitAttention::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::model::cuda
