// TreeAttention in plain loops: FlashInfer's kernels are for tensor cores alone. What is planned
// and refused is the real thing's.

#include "model/cuda/tree_attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "model/attention_plan.h"
#include "tests/cuda/emulator/stream.h"

namespace specfabric::model::cuda {

using base::cuda::Stream;

struct TreeAttention::State {
  TreeAttentionConfig config;
  TreeAttentionCapacity capacity;
  AttentionPlan plan;
  TreeAttentionPlan tiles;
  bool planned = false;
};

TreeAttention::TreeAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
TreeAttention::TreeAttention(TreeAttention&& other) noexcept = default;
TreeAttention& TreeAttention::operator=(TreeAttention&& other) noexcept = default;
TreeAttention::~TreeAttention() = default;

absl::StatusOr<TreeAttention> TreeAttention::Create(const TreeAttentionConfig& config) {
  auto state = std::make_unique<State>();
  state->config = config;
  if (state->config.rules.processors == 0) state->config.rules.processors = 4;
  const auto capacity = CapacityOf(state->config.rules);
  if (!capacity.ok()) return capacity.status();
  state->capacity = *capacity;
  return TreeAttention(std::move(state));
}

absl::Status TreeAttention::Plan(const Batch& batch, Stream /*stream*/) {
  State& s = *state_;
  const TreeAttentionRules& rules = s.config.rules;
  absl::Status status = MakeTreeAttentionPlan(batch, rules, s.capacity, &s.tiles);
  status.Update(MakeAttentionPlan(
      batch, {std::numeric_limits<int32_t>::max(), rules.blocks, rules.block_size}, &s.plan));
  s.planned = status.ok();
  return status;
}

namespace {

void Attend(const TreeAttentionConfig& config, const AttentionPlan& plan,
            const LayerAttention& layer) {
  const int32_t heads = config.rules.heads, kv_heads = config.rules.kv_heads;
  const int32_t d = config.rules.head_dim;
  const auto wide = [](const void* data, size_t at) {
    return base::WidenBFloat16(static_cast<const uint16_t*>(data)[at]);
  };
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    const RowView& view = plan.rows[row];
    for (int32_t head = 0; head < heads; ++head) {
      const size_t query = (row * heads + head) * d;
      std::vector<double> out(d, 0.0);
      double sum = 0;
      for (int32_t i = 0; i < view.visible(); ++i) {
        const size_t slot = i < view.run_count ? plan.slots[view.run_first + i]
                                               : plan.extra[view.extra_first + i - view.run_count];
        const size_t at = (slot * kv_heads + head / (heads / kv_heads)) * d;
        double score = 0;
        for (int32_t e = 0; e < d; ++e)
          score += wide(layer.queries, query + e) * wide(layer.keys, at + e);
        const double weight = std::exp(score * config.scale);
        sum += weight;
        for (int32_t e = 0; e < d; ++e) out[e] += weight * wide(layer.values, at + e);
      }
      for (int32_t e = 0; e < d; ++e) {
        static_cast<uint16_t*>(layer.out)[query + e] =
            base::RoundToBFloat16(static_cast<float>(out[e] / sum));
      }
    }
  }
}

}  // namespace

absl::Status TreeAttention::Run(const LayerAttention& layer, Stream /*stream*/) {
  if (!state_->planned) return absl::FailedPreconditionError("tree attention: no batch is planned");
  // As the kernels, those of a graph read what is planned when they run.
  const State* const s = state_.get();
  const cudaError_t enqueued = emulator::Enqueue([s, layer] {
    Attend(s->config, s->plan, layer);
    return cudaSuccess;
  });
  return enqueued == cudaSuccess ? absl::OkStatus() : absl::InternalError("emulated error");
}

}  // namespace specfabric::model::cuda
