// The device's tree attention against sums in double precision over what batch.h says a row sees.

#include "model/cuda/tree_attention.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>

#include "tests/cuda/device.h"
#include "tests/cuda/random_batch.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Check;
using base::cuda::DeviceArray;
using base::cuda::DeviceTest;

constexpr uint16_t kNan = 0x7fff;  // of both types

uint16_t Narrow(AttentionType type, float value) {
  return type == AttentionType::kFloat16 ? __half_as_ushort(__float2half_rn(value))
                                         : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
// From a table, because sums over a batch take it many millions of times.
double Wide(AttentionType type, uint16_t bits) {
  static const std::vector<float> tables = [] {
    std::vector<float> values;
    for (uint32_t i = 0; i < 0x10000; ++i) values.push_back(__half2float(__ushort_as_half(i)));
    for (uint32_t i = 0; i < 0x10000; ++i) {
      values.push_back(__bfloat162float(__ushort_as_bfloat16(i)));
    }
    return values;
  }();
  return tables[bits + (type == AttentionType::kFloat16 ? 0 : 0x10000)];
}

struct Shape {
  AttentionType type = AttentionType::kBFloat16;
  int32_t head_dim = 128;
  int32_t kv_heads = 2;
  int32_t group = 4;
  int32_t heads() const { return kv_heads * group; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

// A batch with its queries and cache. What no sequence has written is NaN.
struct Case {
  Shape shape;
  int32_t block_size = 16;
  Batch batch;
  std::vector<uint16_t> queries = {}, keys = {}, values = {};

  int64_t Slot(const BatchSequence& s, int32_t slot) const {
    return int64_t{batch.blocks[s.first_block + slot / block_size]} * block_size +
           slot % block_size;
  }
};

Case RandomCase(std::mt19937& rng, const Shape& shape, const BatchForm& form) {
  Case c = {.shape = shape, .block_size = form.block_size, .batch = RandomBatch(rng, form)};
  std::normal_distribution<float> normal(0, 1);
  const auto draw = [&] { return Narrow(shape.type, normal(rng)); };
  c.queries.resize(size_t(c.batch.rows()) * shape.heads() * shape.head_dim);
  std::generate(c.queries.begin(), c.queries.end(), draw);
  const size_t stride = size_t(shape.kv_heads) * shape.head_dim;
  c.keys.assign(size_t(form.blocks) * form.block_size * stride, kNan);
  c.values = c.keys;
  for (const BatchSequence& s : c.batch.sequences) {
    for (int32_t slot = 0; slot < s.kv_len + s.tree_first + s.row_count; ++slot) {
      const size_t at = c.Slot(s, slot) * stride;
      std::generate_n(c.keys.begin() + at, stride, draw);
      std::generate_n(c.values.begin() + at, stride, draw);
    }
  }
  return c;
}

// The slots of its sequence that row i sees.
std::vector<int32_t> Seen(const Batch& batch, const BatchSequence& s, int32_t i) {
  std::vector<int32_t> seen(s.kv_len);
  std::iota(seen.begin(), seen.end(), 0);
  const uint64_t* words = &batch.ancestors[size_t(s.first_row + i) * batch.mask_words];
  for (int32_t j = 0; j < s.tree_first + s.row_count; ++j) {
    if (s.causal ? j <= i : (words[j / 64] >> j % 64 & 1) != 0) seen.push_back(s.kv_len + j);
  }
  return seen;
}

// Weighted with the same weights: the values, and their absolute values.
struct Sums {
  std::vector<double> value, magnitude;
};
Sums Attend(const Case& c, const BatchSequence& s, int32_t i, int32_t head) {
  const Shape& shape = c.shape;
  const std::vector<int32_t> seen = Seen(c.batch, s, i);
  const uint16_t* query =
      &c.queries[(size_t(s.first_row + i) * shape.heads() + head) * shape.head_dim];
  const auto at = [&](const std::vector<uint16_t>& cache, int32_t slot) {
    return &cache[(c.Slot(s, slot) * shape.kv_heads + head / shape.group) * shape.head_dim];
  };
  std::vector<double> scores;
  for (int32_t slot : seen) {
    double score = 0;
    const uint16_t* key = at(c.keys, slot);
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      score += Wide(shape.type, query[d]) * Wide(shape.type, key[d]);
    }
    scores.push_back(score * shape.scale());
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  Sums sums = {std::vector<double>(shape.head_dim), std::vector<double>(shape.head_dim)};
  for (size_t n = 0; n < seen.size(); ++n) {
    const double weight = std::exp(scores[n] - most);
    total += weight;
    const uint16_t* value = at(c.values, seen[n]);
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      const double v = Wide(shape.type, value[d]);
      sums.value[d] += weight * v;
      sums.magnitude[d] += weight * std::abs(v);
    }
  }
  for (double& v : sums.value) v /= total;
  for (double& v : sums.magnitude) v /= total;
  return sums;
}

TreeAttentionConfig ConfigFor(const Case& c, int32_t max_rows, int32_t max_sequences) {
  TreeAttentionConfig config;
  config.type = c.shape.type;
  config.scale = c.shape.scale();
  config.rules.heads = c.shape.heads();
  config.rules.kv_heads = c.shape.kv_heads;
  config.rules.head_dim = c.shape.head_dim;
  config.rules.block_size = c.block_size;
  config.rules.blocks = static_cast<int32_t>(
      c.keys.size() / (size_t(c.block_size) * c.shape.kv_heads * c.shape.head_dim));
  config.rules.max_rows = max_rows;
  config.rules.max_sequences = max_sequences;
  config.rules.max_blocks = 4096 / c.block_size;
  config.rules.max_mask_words = 4;
  return config;
}

// A batch's queries and cache on the device.
struct OnDevice {
  explicit OnDevice(const Case& c)
      : queries(c.queries), keys(c.keys), values(c.values), out(c.queries.size()) {}
  LayerAttention Layer() { return {queries.data(), keys.data(), values.data(), out.data()}; }
  DeviceArray<uint16_t> queries, keys, values, out;
};

std::vector<uint16_t> Attended(const Case& c, const TreeAttentionConfig& config) {
  absl::StatusOr<TreeAttention> attention = TreeAttention::Create(config);
  EXPECT_EQ(attention.status(), absl::OkStatus());
  OnDevice device(c);
  EXPECT_EQ(attention->Plan(c.batch, nullptr), absl::OkStatus());
  EXPECT_EQ(attention->Run(device.Layer(), nullptr), absl::OkStatus());
  return device.out.Read();
}

// Weights are rounded to the type, and so is the result: each of these and of the weights' sum by
// half a unit in the last place at most.
void ExpectNear(const Case& c, const std::vector<uint16_t>& out) {
  const double tolerance = c.shape.type == AttentionType::kFloat16 ? 1.0 / 1024 : 1.0 / 128;
  for (const BatchSequence& s : c.batch.sequences) {
    for (int32_t i = 0; i < s.row_count; ++i) {
      for (int32_t head = 0; head < c.shape.heads(); ++head) {
        const Sums expected = Attend(c, s, i, head);
        const uint16_t* row =
            &out[(size_t(s.first_row + i) * c.shape.heads() + head) * c.shape.head_dim];
        for (int32_t d = 0; d < c.shape.head_dim; ++d) {
          ASSERT_NEAR(Wide(c.shape.type, row[d]), expected.value[d],
                      tolerance * expected.magnitude[d] + 1e-5)
              << "row " << i << " of " << s.row_count << ", kv_len " << s.kv_len << ", tree_first "
              << s.tree_first << ", head " << head << ", lane " << d;
        }
      }
    }
  }
}

// The same queries and cache, but a batch of one sequence, without its first `drop` rows: of a
// causal one these are then part of what is in the cache, of a tree written by an earlier step.
Case Alone(const Case& c, const BatchSequence& of, int32_t drop) {
  Case alone = c;
  BatchSequence s = of;
  (s.causal ? s.kv_len : s.tree_first) += drop;
  s.row_count -= drop;
  const int32_t row = of.first_row + drop;
  const size_t width = size_t(c.shape.heads()) * c.shape.head_dim;
  alone.queries.assign(c.queries.begin() + row * width,
                       c.queries.begin() + (row + s.row_count) * width);
  const size_t words = c.batch.mask_words;
  alone.batch.ancestors.assign(c.batch.ancestors.begin() + row * words,
                               c.batch.ancestors.begin() + (row + s.row_count) * words);
  alone.batch.tokens.resize(s.row_count);
  s.first_row = 0;
  alone.batch.sequences = {s};
  return alone;
}

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
          ExpectNear(c, Attended(c, config));
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
      const std::vector<uint16_t> together = Attended(c, config);
      config.rules.fixed_grid = true;
      EXPECT_EQ(Attended(c, config), together);
      config.rules.fixed_grid = false;
      for (const BatchSequence& s : c.batch.sequences) {
        for (int32_t drop : {0, s.row_count / 3, s.row_count - 1}) {
          const std::vector<uint16_t> alone = Attended(Alone(c, s, drop), config);
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
  absl::StatusOr<TreeAttention> attention = TreeAttention::Create(config);
  ASSERT_EQ(attention.status(), absl::OkStatus());
  const size_t width = size_t(shape.heads()) * shape.head_dim;
  DeviceArray<uint16_t> queries(6 * 64 * width), out(6 * 64 * width);
  DeviceArray<uint16_t> keys(largest.keys.size()), values(largest.values.size());
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreate(&stream), "a stream");
  ASSERT_EQ(attention->Plan(largest.batch, stream), absl::OkStatus());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  EXPECT_EQ(attention->Run({queries.data(), keys.data(), values.data(), out.data()}, stream),
            absl::OkStatus());
  Check(cudaStreamEndCapture(stream, &graph), "a capture");
  Check(cudaGraphInstantiate(&ready, graph, 0), "a graph");
  for (int round = 0; round < 5; ++round) {
    const BatchForm smaller = {.sequences = 1 + round, .blocks = 1024, .max_kv = 100 << round};
    const Case c = RandomCase(rng_, shape, smaller);
    const auto copy = [](DeviceArray<uint16_t>& to, const std::vector<uint16_t>& from) {
      Check(cudaMemcpy(to.data(), from.data(), from.size() * 2, cudaMemcpyHostToDevice), "copy");
    };
    copy(queries, c.queries);
    copy(keys, c.keys);
    copy(values, c.values);
    ASSERT_EQ(attention->Plan(c.batch, stream), absl::OkStatus());
    Check(cudaGraphLaunch(ready, stream), "a graph");
    ExpectNear(c, out.Read());
  }
  Check(cudaGraphExecDestroy(ready), "a graph");
  Check(cudaGraphDestroy(graph), "a graph");
  Check(cudaStreamDestroy(stream), "a stream");
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
