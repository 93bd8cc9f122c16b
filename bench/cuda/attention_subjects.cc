#include <cmath>
#include <numeric>

#include "base/bfloat16.h"
#include "bench/cuda/subjects.h"
#include "model/batch.h"
#include "model/cuda/paged_attention.h"
#include "model/cuda/tree_attention.h"
#include "model/cuda/tree_attention_split.h"

namespace specfabric::bench {
namespace {

using base::cuda::Device;
using base::cuda::Stream;
using model::AttentionPlan;
using model::Batch;
using model::DataType;
using model::cuda::AttendArgs;
using model::cuda::EnqueueAttend;
using model::cuda::LayerAttention;
using model::cuda::SplitAttention;
using model::cuda::TreeAttention;
using model::cuda::TreeAttentionConfig;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kShortContext = 192;

// Every sequence has slots of its own, in consecutive ranges.
AttentionPlan PlanOfChains(const BenchShape& shape) {
  AttentionPlan plan;
  plan.slots.resize(size_t(shape.sequences) * shape.context);
  std::iota(plan.slots.begin(), plan.slots.end(), 0);
  for (int32_t s = 0; s < shape.sequences; ++s) {
    for (int32_t node = 0; node < shape.nodes; ++node) {
      const int32_t visible = shape.context - shape.nodes + node + 1;
      plan.rows.push_back({.write_slot = s * shape.context + visible - 1,
                           .run_first = s * shape.context,
                           .run_count = visible});
    }
  }
  return plan;
}

// The same, as trees; `forked`: of which the last node is the second child of the first, so that
// they are no chains.
Batch Trees(const BenchShape& shape, bool forked) {
  Batch batch;
  const int32_t blocks = shape.context / kBlockSize;
  for (int32_t s = 0; s < shape.sequences; ++s) {
    batch.sequences.push_back({.kv_len = shape.context - shape.nodes,
                               .first_row = batch.rows(),
                               .row_count = shape.nodes,
                               .first_block = s * blocks,
                               .block_count = blocks,
                               .causal = false});
    for (int32_t node = 0; node < shape.nodes; ++node) {
      batch.tokens.push_back(0);
      batch.positions.push_back(shape.context - shape.nodes + node);
      const bool fork = forked && node > 1 && node + 1 == shape.nodes;
      batch.ancestors.push_back(fork ? uint64_t{1} << node | 1 : (uint64_t{2} << node) - 1);
    }
  }
  batch.blocks.resize(size_t(shape.sequences) * blocks);
  std::iota(batch.blocks.begin(), batch.blocks.end(), 0);
  return batch;
}

TreeAttentionConfig ConfigOf(const BenchShape& shape, const Batch& batch) {
  TreeAttentionConfig config;
  config.rules.heads = shape.heads;
  config.rules.kv_heads = shape.kv_heads;
  config.rules.head_dim = shape.head_dim;
  config.rules.block_size = kBlockSize;
  config.rules.blocks = static_cast<int32_t>(batch.blocks.size());
  config.rules.max_rows = batch.rows();
  config.rules.max_sequences = shape.sequences;
  config.rules.max_blocks = shape.context / kBlockSize;
  config.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return config;
}

// Attention of one sequence after a few tokens, which is not a matter of bytes.
Subject ShortSubject(const Device& device, BenchShape shape, int32_t head_dim, int32_t rows,
                     bool forked) {
  shape.sequences = 1;
  shape.nodes = rows;
  shape.head_dim = head_dim;
  shape.context = kShortContext + kBlockSize * ((rows + kBlockSize - 1) / kBlockSize);
  const auto arena = std::make_shared<Arena>();
  const Stream stream = device.stream();
  const size_t plane = size_t(shape.context) * shape.kv_heads * head_dim;
  const size_t query = size_t(rows) * shape.heads * head_dim;
  const LayerAttention layer = {
      .queries = arena->New(std::vector<uint16_t>(query, base::RoundToBFloat16(0.1f))),
      .keys = arena->New(std::vector<uint16_t>(plane, 0)),
      .values = arena->New(std::vector<uint16_t>(plane, 0)),
      .out = arena->New<uint16_t>(query)};
  const Batch batch = Trees(shape, forked);
  auto attention =
      std::make_shared<SplitAttention>(OrDie(SplitAttention::Create(ConfigOf(shape, batch))));
  Check(attention->Plan(batch, stream));
  Check(device.Finish());
  return {std::to_string(rows) + (forked ? " rows of a tree" : " rows") + ", heads of " +
              std::to_string(head_dim),
          2.0 * sizeof(uint16_t) * static_cast<double>(plane),
          [arena, attention, layer, stream] { Check(attention->Run(layer, stream)); }};
}

}  // namespace

std::vector<Subject> AttentionSubjects(const Device& device, const BenchShape& shape) {
  const auto arena = std::make_shared<Arena>();
  const Stream stream = device.stream();
  const size_t plane = size_t(shape.sequences) * shape.context * shape.kv_heads * shape.head_dim;
  const size_t query = size_t(shape.sequences) * shape.nodes * shape.heads * shape.head_dim;
  // A pass has to read every sequence's keys and values once.
  const double bytes = 2.0 * sizeof(uint16_t) * static_cast<double>(plane);
  auto* const keys = arena->New(std::vector<uint16_t>(plane, 0));
  auto* const values = arena->New(std::vector<uint16_t>(plane, 0));
  auto* const out = arena->New<uint16_t>(query);

  const AttentionPlan plan = PlanOfChains(shape);
  const AttendArgs attend = {.cache = {.type = DataType::kBFloat16,
                                       .heads = shape.heads,
                                       .kv_heads = shape.kv_heads,
                                       .head_dim = shape.head_dim,
                                       .keys = keys,
                                       .values = values},
                             .rows = static_cast<int32_t>(plan.rows.size()),
                             .views = arena->New(plan.rows),
                             .slots = arena->New(plan.slots),
                             .queries = arena->New(std::vector<float>(query, 0.1f)),
                             .out = out};
  std::vector<Subject> subjects = {{"plain attention", bytes, [arena, attend, stream] {
                                      Check(EnqueueAttend(attend, stream));
                                    }}};

  const LayerAttention layer = {
      .queries = arena->New(std::vector<uint16_t>(query, base::RoundToBFloat16(0.1f))),
      .keys = keys,
      .values = values,
      .out = out};
  const Batch chains = Trees(shape, /*forked=*/false);
  TreeAttentionConfig config = ConfigOf(shape, chains);
  const auto add = [&]<typename Attention>(const std::string& name, const Batch& batch,
                                           Attention made) {
    auto attention = std::make_shared<Attention>(std::move(made));
    Check(attention->Plan(batch, stream));
    Check(device.Finish());
    subjects.push_back(
        {name, bytes, [arena, attention, layer, stream] { Check(attention->Run(layer, stream)); }});
  };
  add("split-KV attention", chains, OrDie(SplitAttention::Create(config)));
  add("split-KV attention, trees", Trees(shape, /*forked=*/true),
      OrDie(SplitAttention::Create(config)));
  add("FlashInfer's attention", chains, OrDie(TreeAttention::Create(config)));
  config.rules.batch_invariant = true;
  add("FlashInfer's, batch-invariant", chains, OrDie(TreeAttention::Create(config)));
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t rows : {1, 4, 8, 16, 64}) {
      for (const bool forked : {false, true}) {
        if (forked && rows < 4) continue;
        subjects.push_back(ShortSubject(device, shape, head_dim, rows, forked));
      }
    }
  }
  return subjects;
}

}  // namespace specfabric::bench
