// FlashInfer's kernel against sums in double precision over what batch.h says a row sees.

#include "model/cuda/tree_attention.h"

#include <cstring>

#include "tests/cuda/device.h"
#include "tests/cuda/tree_attention_case.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Check;
using base::cuda::DeviceTest;

class TreeAttentionTest : public DeviceTest {
 protected:
  std::mt19937 rng_{1};
};

TEST_F(TreeAttentionTest, SeesWhatTheBatchSays) {
  struct Setup {
    int32_t group, block_size, mask_words, sequences, max_kv, max_prefill, max_tree;
  };
  const std::vector<Setup> setups = {{1, 16, 1, 9, 300, 40, 20}, {4, 1, 4, 6, 200, 20, 200},
                                     {7, 32, 1, 7, 500, 30, 64}, {8, 16, 4, 5, 300, 150, 100},
                                     {8, 32, 1, 2, 3000, 0, 0},  {7, 16, 1, 3, 2500, 1, 8},
                                     {4, 32, 1, 4, 0, 130, 64},  {20, 16, 4, 3, 400, 4, 10},
                                     {1, 1, 1, 12, 100, 0, 0},   {140, 16, 1, 2, 300, 3, 3}};
  for (AttentionType type : {AttentionType::kFloat16, AttentionType::kBFloat16}) {
    for (int32_t head_dim : {64, 128}) {
      for (const Setup& setup : setups) {
        for (bool invariant : {false, true}) {
          const Shape shape = {
              .type = type, .head_dim = head_dim, .kv_heads = 2, .group = setup.group};
          const BatchForm form = {.sequences = setup.sequences,
                                  .block_size = setup.block_size,
                                  .blocks = 8192 / setup.block_size + 64,
                                  .mask_words = setup.mask_words,
                                  .max_kv = setup.max_kv,
                                  .max_prefill = setup.max_prefill,
                                  .max_tree = setup.max_tree};
          SCOPED_TRACE(testing::Message()
                       << "head size " << head_dim << " group " << setup.group << " blocks of "
                       << setup.block_size << (invariant ? " invariant" : ""));
          const Case c = RandomCase(rng_, shape, form);
          TreeAttentionConfig config = ConfigFor(c, c.batch.rows(), setup.sequences);
          config.rules.batch_invariant = invariant;
          config.rules.chunk = 256;
          ExpectNear(c, Attended<TreeAttention>(c, config));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(TreeAttentionTest, InvariantRowsHaveTheSameBitsInEveryBatch) {
  for (int32_t group : {1, 4, 7, 8}) {
    for (int32_t head_dim : {64, 128}) {
      const Shape shape = {.head_dim = head_dim, .kv_heads = 2, .group = group};
      const BatchForm form = {
          .sequences = 20, .blocks = 2048, .mask_words = 4, .max_kv = 900, .max_prefill = 200};
      const Case c = RandomCase(rng_, shape, form);
      TreeAttentionConfig config = ConfigFor(c, 4000, 20);
      config.rules.batch_invariant = true;
      config.rules.chunk = 256;
      const std::vector<uint16_t> together = Attended<TreeAttention>(c, config);
      config.rules.fixed_grid = true;
      EXPECT_EQ(Attended<TreeAttention>(c, config), together);
      config.rules.fixed_grid = false;
      for (const BatchSequence& s : c.batch.sequences) {
        for (int32_t drop : {0, s.row_count / 3, s.row_count - 1}) {
          const std::vector<uint16_t> alone = Attended<TreeAttention>(Alone(c, s, drop), config);
          const size_t first = size_t(s.first_row + drop) * shape.heads() * head_dim;
          EXPECT_EQ(std::memcmp(alone.data(), &together[first], alone.size() * sizeof(uint16_t)), 0)
              << "rows from " << drop << " of " << s.row_count << ", kv_len " << s.kv_len
              << (s.causal ? "" : ", a tree") << ", group " << group << ", head size " << head_dim;
        }
      }
    }
  }
}

TEST_F(TreeAttentionTest, OneCaptureServesEveryBatch) {
  const Shape shape;
  const BatchForm form = {.sequences = 6, .blocks = 1024};
  const Case largest = RandomCase(rng_, shape, form);
  TreeAttentionConfig config = ConfigFor(largest, 6 * 64, 6);
  config.rules.fixed_grid = true;
  ExpectOneCaptureServes<TreeAttention>(largest, config, 6 * 64, 5, 1, [&](int round) {
    const BatchForm smaller = {.sequences = 1 + round, .blocks = 1024, .max_kv = 100 << round};
    return RandomCase(rng_, shape, smaller);
  });
}

TEST_F(TreeAttentionTest, RefusesWhatItCannotRun) {
  const Case c = RandomCase(rng_, Shape{}, BatchForm{.sequences = 2, .blocks = 256});
  absl::StatusOr<TreeAttention> attention = TreeAttention::Create(ConfigFor(c, 200, 2));
  ASSERT_EQ(attention.status(), absl::OkStatus());
  OnDevice device(c);
  LayerAttention layer = device.Layer();
  EXPECT_EQ(attention->Run(layer, nullptr).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(attention->Plan(c.batch, nullptr), absl::OkStatus());
  layer.out = device.out.data() + 1;
  EXPECT_EQ(attention->Run(layer, nullptr).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::model::cuda
