#ifndef SPECFABRIC_TESTS_CUDA_TREE_ATTENTION_CASE_H_
#define SPECFABRIC_TESTS_CUDA_TREE_ATTENTION_CASE_H_

// Batches for tests of tree attention's kernels, with their queries and cache, and what these must
// come to: sums in double precision over what batch.h says a row sees.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "model/cuda/tree_attention.h"
#include "tests/cuda/device.h"
#include "tests/cuda/random_batch.h"

namespace specfabric::model::cuda {

using base::cuda::Check;
using base::cuda::DeviceArray;

constexpr uint16_t kNan = 0x7fff;  // of both types

inline uint16_t Narrow(AttentionType type, float value) {
  return type == AttentionType::kFloat16 ? __half_as_ushort(__float2half_rn(value))
                                         : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
// From a table, because sums over a batch take it many millions of times.
inline double Wide(AttentionType type, uint16_t bits) {
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

// Draws the queries and the cache of a case's batch.
inline void FillCase(std::mt19937& rng, const BatchForm& form, Case* c) {
  const Shape& shape = c->shape;
  std::normal_distribution<float> normal(0, 1);
  const auto draw = [&] { return Narrow(shape.type, normal(rng)); };
  c->queries.resize(size_t(c->batch.rows()) * shape.heads() * shape.head_dim);
  std::generate(c->queries.begin(), c->queries.end(), draw);
  const size_t stride = size_t(shape.kv_heads) * shape.head_dim;
  c->keys.assign(size_t(form.blocks) * form.block_size * stride, kNan);
  c->values = c->keys;
  for (const BatchSequence& s : c->batch.sequences) {
    for (int32_t slot = 0; slot < s.kv_len + s.tree_first + s.row_count; ++slot) {
      const size_t at = c->Slot(s, slot) * stride;
      std::generate_n(c->keys.begin() + at, stride, draw);
      std::generate_n(c->values.begin() + at, stride, draw);
    }
  }
}

inline Case RandomCase(std::mt19937& rng, const Shape& shape, const BatchForm& form) {
  Case c = {.shape = shape, .block_size = form.block_size, .batch = RandomBatch(rng, form)};
  FillCase(rng, form, &c);
  return c;
}

// The slots of its sequence that row i sees.
inline std::vector<int32_t> Seen(const Batch& batch, const BatchSequence& s, int32_t i) {
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
inline Sums Attend(const Case& c, const BatchSequence& s, int32_t i, int32_t head) {
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

inline TreeAttentionConfig ConfigFor(const Case& c, int32_t max_rows, int32_t max_sequences) {
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

template <typename Attention>
std::vector<uint16_t> Attended(const Case& c, const TreeAttentionConfig& config) {
  absl::StatusOr<Attention> attention = Attention::Create(config);
  EXPECT_EQ(attention.status(), absl::OkStatus());
  OnDevice device(c);
  EXPECT_EQ(attention->Plan(c.batch, nullptr), absl::OkStatus());
  EXPECT_EQ(attention->Run(device.Layer(), nullptr), absl::OkStatus());
  return device.out.Read();
}

// Weights are rounded to the type, and so is the result: each of these and of the weights' sum by
// half a unit in the last place at most.
inline void ExpectNear(const Case& c, const std::vector<uint16_t>& out) {
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

// One capture, made with the `largest` case of `rows` rows, serves those that next(round) gives:
// each is launched so often, as for as many layers, and gives what is right.
template <typename Attention, typename Next>
void ExpectOneCaptureServes(const Case& largest, const TreeAttentionConfig& config, int32_t rows,
                            int rounds, int launches, const Next& next) {
  absl::StatusOr<Attention> attention = Attention::Create(config);
  ASSERT_EQ(attention.status(), absl::OkStatus());
  const size_t width = size_t(largest.shape.heads()) * largest.shape.head_dim;
  DeviceArray<uint16_t> queries(rows * width), out(rows * width);
  DeviceArray<uint16_t> keys(largest.keys.size()), values(largest.values.size());
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  ASSERT_EQ(attention->Plan(largest.batch, stream), absl::OkStatus());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  EXPECT_EQ(attention->Run({queries.data(), keys.data(), values.data(), out.data()}, stream),
            absl::OkStatus());
  Check(cudaStreamEndCapture(stream, &graph), "a capture");
  Check(cudaGraphInstantiate(&ready, graph, 0), "a graph");
  for (int round = 0; round < rounds; ++round) {
    const Case c = next(round);
    const auto copy = [](DeviceArray<uint16_t>& to, const std::vector<uint16_t>& from) {
      Check(cudaMemcpy(to.data(), from.data(), from.size() * 2, cudaMemcpyHostToDevice), "copy");
    };
    copy(queries, c.queries);
    copy(keys, c.keys);
    copy(values, c.values);
    ASSERT_EQ(attention->Plan(c.batch, stream), absl::OkStatus());
    for (int i = 0; i < launches; ++i) Check(cudaGraphLaunch(ready, stream), "a graph");
    ExpectNear(c, out.Read());
  }
  Check(cudaGraphExecDestroy(ready), "a graph");
  Check(cudaGraphDestroy(graph), "a graph");
  Check(cudaStreamDestroy(stream), "a stream");
}

// The same queries and cache, but a batch of one sequence, without its first `drop` rows: of a
// causal one these are then part of what is in the cache, of a tree written by an earlier step.
inline Case Alone(const Case& c, const BatchSequence& of, int32_t drop) {
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

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_TESTS_CUDA_TREE_ATTENTION_CASE_H_
