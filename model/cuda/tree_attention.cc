#include "model/cuda/tree_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda/memory.h"
#include "model/cuda/tree_attention_device.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::Stream;

absl::Status Prepare(const TreeAttentionConfig& config) {
  const bool wide = config.rules.head_dim == 128;
  if (config.type == AttentionType::kFloat16) {
    return wide ? PrepareTreeAttention<AttentionType::kFloat16, 128>()
                : PrepareTreeAttention<AttentionType::kFloat16, 64>();
  }
  return wide ? PrepareTreeAttention<AttentionType::kBFloat16, 128>()
              : PrepareTreeAttention<AttentionType::kBFloat16, 64>();
}

absl::Status Enqueue(const TreeAttentionConfig& config, const TreeAttentionCall& call,
                     Stream stream) {
  const bool wide = config.rules.head_dim == 128;
  if (config.type == AttentionType::kFloat16) {
    return wide ? EnqueueTreeAttention<AttentionType::kFloat16, 128>(call, stream)
                : EnqueueTreeAttention<AttentionType::kFloat16, 64>(call, stream);
  }
  return wide ? EnqueueTreeAttention<AttentionType::kBFloat16, 128>(call, stream)
              : EnqueueTreeAttention<AttentionType::kBFloat16, 64>(call, stream);
}

}  // namespace

struct TreeAttention::State {
  TreeAttentionConfig config;
  TreeAttentionCapacity capacity;
  PlanLayout layout;  // of the batch last planned
  TreeAttentionPlan plan;
  PlanStaging staging;
  bool planned = false;
  DeviceBuffer partials, weights;  // float
};

TreeAttention::TreeAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
TreeAttention::TreeAttention(TreeAttention&& other) noexcept = default;
TreeAttention& TreeAttention::operator=(TreeAttention&& other) noexcept = default;
TreeAttention::~TreeAttention() = default;

absl::StatusOr<TreeAttention> TreeAttention::Create(const TreeAttentionConfig& config) {
  auto state = std::make_unique<State>();
  state->config = config;
  TreeAttentionRules& rules = state->config.rules;
  if (!std::isfinite(config.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tree attention: scale ", config.scale, "; allowed: finite"));
  }
  if (rules.processors == 0) {
    if (absl::Status status = CountProcessors(&rules.processors); !status.ok()) return status;
  }
  absl::StatusOr<TreeAttentionCapacity> capacity = CapacityOf(rules);
  if (!capacity.ok()) return capacity.status();
  state->capacity = *capacity;
  state->layout = LargestLayout(rules, *capacity);
  const size_t partial_heads = size_t(capacity->partial_rows) * rules.heads;
  absl::Status status = state->staging.Reserve(state->layout.size);
  status.Update(state->partials.Reserve(partial_heads * rules.head_dim * sizeof(float)));
  status.Update(state->weights.Reserve(partial_heads * sizeof(float)));
  if (status.ok()) status = Prepare(state->config);
  if (!status.ok()) return status;
  return TreeAttention(std::move(state));
}

absl::Status TreeAttention::Plan(const Batch& batch, Stream stream) {
  State& s = *state_;
  s.planned = false;
  absl::Status status = MakeTreeAttentionPlan(batch, s.config.rules, s.capacity, &s.plan);
  if (!status.ok()) return status;
  if (!s.config.rules.fixed_grid) s.layout = LayoutOf(s.plan, batch);

  const absl::StatusOr<std::byte*> memory = s.staging.Next();
  if (!memory.ok()) return memory.status();
  status = s.staging.Copy(Pack(s.plan, batch, s.layout, *memory), stream);
  s.planned = status.ok();
  return status;
}

absl::Status TreeAttention::Run(const LayerAttention& layer, Stream stream) {
  const State& s = *state_;
  if (!s.planned) return absl::FailedPreconditionError("tree attention: no batch is planned");
  if (absl::Status status = CheckAligned(layer); !status.ok()) return status;
  const TreeAttentionRules& rules = s.config.rules;
  TreeAttentionCall call;
  call.queries = layer.queries;
  call.keys = layer.keys;
  call.values = layer.values;
  call.out = layer.out;
  call.partials = s.partials.As<float>();
  call.weights = s.weights.As<float>();
  call.plan = s.staging.device();
  call.layout = &s.layout;
  call.tile_q = s.plan.tile_q;
  call.partial = s.plan.partial;
  call.heads = rules.heads;
  call.kv_heads = rules.kv_heads;
  call.block_size = rules.block_size;
  call.processors = rules.processors;
  call.scale = s.config.scale;
  if (rules.fixed_grid) {
    call.wave.items = s.capacity.items;
    call.wave.rows = rules.max_rows;
    call.row_count = reinterpret_cast<const uint32_t*>(s.staging.device() + s.layout.rows);
    return Enqueue(s.config, call, stream);
  }
  for (const AttentionWave& wave : s.plan.waves) {
    call.wave = wave;
    if (absl::Status status = Enqueue(s.config, call, stream); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model::cuda
