#include "model/cpu/attention.h"

#include <utility>

namespace specfabric::model::cpu {

absl::Status Attention::Forward(const AttentionInputs& inputs, float* out) {
  const AttentionPlan& plan = *inputs.plan;
  const KvShape& shape = inputs.cache->shape();
  const int group = inputs.heads / shape.kv_heads;
  const size_t padded = static_cast<size_t>(plan.max_visible + kLanes - 1) / kLanes * kLanes;
  const size_t worker_scores = group * padded;
  const size_t needed = pool_->threads() * worker_scores * sizeof(float);
  if (scores_.bytes() < needed) {
    absl::StatusOr<AlignedBuffer> grown = AlignedBuffer::Create(2 * needed);
    if (!grown.ok()) return grown.status();
    scores_ = *std::move(grown);
  }
  const auto attend =
      shape.dtype == DataType::kFloat32 ? kernels_.attention_float32 : kernels_.attention_bfloat16;
  const int items = static_cast<int>(plan.rows.size()) * shape.kv_heads;
  pool_->Run(items, [&](int worker, int begin, int end) {
    for (int item = begin; item < end; ++item) {
      const int row = item / shape.kv_heads, kv_head = item % shape.kv_heads;
      const int64_t first_head = int64_t{row} * inputs.heads + kv_head * group;
      const RowView& view = plan.rows[row];
      AttentionArgs args;
      args.q = inputs.queries + first_head * shape.stride();
      args.heads = group;
      args.head_dim = shape.head_dim;
      args.stride = shape.stride();
      args.keys = inputs.cache->keys(inputs.layer, kv_head);
      args.values = inputs.cache->values(inputs.layer, kv_head);
      args.run = plan.slots.data() + view.run_first;
      args.run_count = view.run_count;
      args.extra = plan.extra.data() + view.extra_first;
      args.extra_count = view.extra_count;
      args.scores = static_cast<float*>(scores_.data()) + worker * worker_scores;
      args.out = out + first_head * shape.head_dim;
      attend(args);
    }
  });
  return absl::OkStatus();
}

}  // namespace specfabric::model::cpu
