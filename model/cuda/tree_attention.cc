#include "model/cuda/tree_attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda/error.h"
#include "base/cuda/memory.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::PinnedBuffer;
using base::cuda::Stream;
using base::cuda::ToStatus;

constexpr int kStagings = 2;

struct EventDestroy {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, EventDestroy>;

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

// Where a plan is put together, and whether it has been copied from there.
struct Staging {
  PinnedBuffer memory;
  Event copied;
};

absl::Status MakeStaging(size_t size, Staging* staging) {
  if (absl::Status status = staging->memory.Reserve(size); !status.ok()) return status;
  std::memset(staging->memory.As<void>(), 0, size);
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  staging->copied.reset(event);
  return ToStatus(error, "event of tree attention");
}

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
  Staging stagings[kStagings];
  int next_staging = 0;
  bool planned = false;
  DeviceBuffer device_plan;
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
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&rules.processors, cudaDevAttrMultiProcessorCount, device);
    }
    if (error != cudaSuccess) return ToStatus(error, "device of tree attention");
  }
  absl::StatusOr<TreeAttentionCapacity> capacity = CapacityOf(rules);
  if (!capacity.ok()) return capacity.status();
  state->capacity = *capacity;
  state->layout = LargestLayout(rules, *capacity);
  for (Staging& staging : state->stagings) {
    absl::Status status = MakeStaging(state->layout.size, &staging);
    if (!status.ok()) return status;
  }
  const size_t partial_heads = size_t(capacity->partial_rows) * rules.heads;
  absl::Status status = state->device_plan.Reserve(state->layout.size);
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

  Staging& staging = s.stagings[s.next_staging];
  s.next_staging = (s.next_staging + 1) % kStagings;
  cudaError_t error = cudaEventSynchronize(staging.copied.get());  // at once if never recorded
  if (error != cudaSuccess) return ToStatus(error, "copy of an earlier attention plan");
  const size_t size = Pack(s.plan, batch, s.layout, staging.memory.As<std::byte>());
  error = cudaMemcpyAsync(s.device_plan.As<void>(), staging.memory.As<void>(), size,
                          cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) error = cudaEventRecord(staging.copied.get(), stream);
  if (error != cudaSuccess) return ToStatus(error, "copy of an attention plan");
  s.planned = true;
  return absl::OkStatus();
}

absl::Status TreeAttention::Run(const LayerAttention& layer, Stream stream) {
  const State& s = *state_;
  if (!s.planned) return absl::FailedPreconditionError("tree attention: no batch is planned");
  if (!IsAligned(layer.queries) || !IsAligned(layer.keys) || !IsAligned(layer.values) ||
      !IsAligned(layer.out)) {
    return absl::InvalidArgumentError(
        "tree attention: memory that is not aligned; allowed: multiples of 16 bytes");
  }
  const TreeAttentionRules& rules = s.config.rules;
  TreeAttentionCall call;
  call.queries = layer.queries;
  call.keys = layer.keys;
  call.values = layer.values;
  call.out = layer.out;
  call.partials = s.partials.As<float>();
  call.weights = s.weights.As<float>();
  call.plan = s.device_plan.As<std::byte>();
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
    call.row_count =
        reinterpret_cast<const uint32_t*>(s.device_plan.As<std::byte>() + s.layout.rows);
    return Enqueue(s.config, call, stream);
  }
  for (const AttentionWave& wave : s.plan.waves) {
    call.wave = wave;
    if (absl::Status status = Enqueue(s.config, call, stream); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model::cuda
