#include "model/cuda/tree_attention_split.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda/error.h"
#include "base/cuda/memory.h"
#include "model/cuda/tree_attention_device.h"
#include "model/cuda/tree_attention_split_kernel.h"
#include "model/cuda/tree_attention_split_plan.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::Stream;
using base::cuda::ToStatus;

// Blocks that are launched for a processor at most, about as many as run there at once; they take
// more items in turn. A graph's launch has as many for every pass, and most may find no item.
constexpr int64_t kSplitBlocksAProcessor = 4;

int32_t MostItemsAtOnce(const TreeAttentionRules& rules) {
  constexpr int64_t kMostBlocks = 65535;  // of a grid's y
  const int64_t items =
      (kSplitBlocksAProcessor * rules.processors + rules.kv_heads - 1) / rules.kv_heads;
  return static_cast<int32_t>(std::min(items, kMostBlocks));
}

// With the processors of the device.
absl::Status Complete(TreeAttentionConfig* config, SplitCapacity* capacity) {
  if (!std::isfinite(config->scale) || config->scale <= 0) {
    return RulesError(absl::StrCat("scale ", config->scale, "; allowed: finite and above 0"));
  }
  TreeAttentionRules& rules = config->rules;
  if (rules.processors == 0) {
    if (absl::Status status = CountProcessors(&rules.processors); !status.ok()) return status;
  }
  const absl::StatusOr<SplitCapacity> most = SplitCapacityOf(rules);
  if (most.ok()) *capacity = *most;
  return most.status();
}

}  // namespace

class SplitScratch {
 public:
  DeviceBuffer partials, stats;  // float
  DeviceBuffer counters;         // uint32
};

absl::StatusOr<std::shared_ptr<const SplitScratch>> MakeSplitScratch(
    const TreeAttentionConfig& config) {
  TreeAttentionConfig completed = config;
  SplitCapacity capacity;
  if (absl::Status status = Complete(&completed, &capacity); !status.ok()) return status;
  const TreeAttentionRules& rules = completed.rules;
  const size_t partial_heads = size_t(capacity.partial_rows) * rules.heads;
  const size_t counters = size_t(capacity.counters) * rules.kv_heads * sizeof(uint32_t);
  auto scratch = std::make_shared<SplitScratch>();
  absl::Status status = scratch->partials.Reserve(partial_heads * rules.head_dim * sizeof(float));
  status.Update(scratch->stats.Reserve(partial_heads * 2 * sizeof(float)));
  status.Update(scratch->counters.Reserve(counters));
  if (!status.ok()) return status;
  cudaError_t error = cudaMemset(scratch->counters.As<void>(), 0, counters);
  // Whatever the stream of later calls.
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return ToStatus(error, "counters of split-KV attention");
  return scratch;
}

struct SplitAttention::State {
  TreeAttentionConfig config;
  SplitCapacity capacity;
  SplitPlan plan;
  PlanStaging staging;
  bool planned = false;
  std::shared_ptr<const SplitScratch> scratch;
};

SplitAttention::SplitAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
SplitAttention::SplitAttention(SplitAttention&& other) noexcept = default;
SplitAttention& SplitAttention::operator=(SplitAttention&& other) noexcept = default;
SplitAttention::~SplitAttention() = default;

absl::StatusOr<SplitAttention> SplitAttention::Create(const TreeAttentionConfig& config,
                                                      std::shared_ptr<const SplitScratch> scratch) {
  auto state = std::make_unique<State>();
  state->config = config;
  absl::Status status = Complete(&state->config, &state->capacity);
  if (status.ok()) status = state->staging.Reserve(state->capacity.plan_bytes);
  if (status.ok()) status = PrepareSplitAttention(config.type, config.rules.head_dim);
  if (!status.ok()) return status;
  state->scratch = std::move(scratch);
  if (state->scratch == nullptr) {
    auto made = MakeSplitScratch(config);
    if (!made.ok()) return made.status();
    state->scratch = *std::move(made);
  }
  return SplitAttention(std::move(state));
}

absl::Status SplitAttention::Plan(const Batch& batch, Stream stream) {
  State& s = *state_;
  s.planned = false;
  absl::Status status = MakeSplitPlan(batch, s.config.rules, s.capacity, &s.plan);
  if (!status.ok()) return status;
  const absl::StatusOr<std::byte*> memory = s.staging.Next();
  if (!memory.ok()) return memory.status();
  status = s.staging.Copy(PackSplitPlan(s.plan, batch, *memory), stream);
  s.planned = status.ok();
  return status;
}

absl::Status SplitAttention::Run(const LayerAttention& layer, Stream stream) {
  const State& s = *state_;
  if (!s.planned) return absl::FailedPreconditionError("tree attention: no batch is planned");
  if (absl::Status status = CheckAligned(layer); !status.ok()) return status;
  const TreeAttentionRules& rules = s.config.rules;
  const int32_t items =
      rules.fixed_grid ? s.capacity.items : static_cast<int32_t>(s.plan.items.size());
  if (items == 0) return absl::OkStatus();
  SplitCall call;
  call.queries = layer.queries;
  call.keys = layer.keys;
  call.values = layer.values;
  call.out = layer.out;
  call.partials = s.scratch->partials.As<float>();
  call.stats = s.scratch->stats.As<float>();
  call.counters = s.scratch->counters.As<uint32_t>();
  call.plan = s.staging.device();
  call.heads = rules.heads;
  call.kv_heads = rules.kv_heads;
  call.block_size = rules.block_size;
  constexpr float kLog2e = 1.44269504f;
  call.scale_log2 = s.config.scale * kLog2e;
  const SplitForm form = {s.config.type, rules.head_dim, s.plan.tiles};
  return EnqueueSplitAttention(form, call, std::min(items, MostItemsAtOnce(rules)), stream);
}

}  // namespace specfabric::model::cuda
