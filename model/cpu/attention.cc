#include "model/cpu/attention.h"

#include <algorithm>
#include <utility>

namespace specfabric::model::cpu {
namespace {

size_t PaddedScores(const AttentionPlan& plan) {
  return static_cast<size_t>(plan.max_visible + kLanes - 1) / kLanes * kLanes;
}

}  // namespace

absl::Status Attention::Forward(const AttentionInputs& inputs, float* out) {
  const AttentionPlan& plan = *inputs.plan;
  const int kv_heads = inputs.cache->shape().kv_heads;
  MakeRowBlocks(plan, std::max(1, kMaxQueries / (inputs.heads / kv_heads)));

  const size_t worker_scores = kMaxQueries * PaddedScores(plan);
  const size_t needed = pool_->threads() * worker_scores * sizeof(float);
  if (scores_.bytes() < needed) {
    absl::StatusOr<AlignedBuffer> grown = AlignedBuffer::Create(2 * needed);
    if (!grown.ok()) return grown.status();
    scores_ = *std::move(grown);
  }
  const int items = static_cast<int>(blocks_.size()) * kv_heads;
  pool_->Run(items, [&](int worker, int begin, int end) {
    float* scores = static_cast<float*>(scores_.data()) + worker * worker_scores;
    for (int item = begin; item < end; ++item) {
      AttendBlock(inputs, blocks_[item / kv_heads], item % kv_heads, scores, out);
    }
  });
  return absl::OkStatus();
}

void Attention::MakeRowBlocks(const AttentionPlan& plan, int rows_of_block) {
  blocks_.clear();
  const auto rows = static_cast<int32_t>(plan.rows.size());
  for (int32_t row = 0; row < rows;) {
    int32_t end = row + 1;
    while (end < rows && end - row < rows_of_block &&
           plan.rows[end].run_first == plan.rows[row].run_first) {
      ++end;
    }
    blocks_.push_back({row, end - row});
    row = end;
  }
}

// All query heads of one KV head, for the rows of a block, kMaxQueries at a time.
void Attention::AttendBlock(const AttentionInputs& inputs, const RowBlock& block, int kv_head,
                            float* scores, float* out) const {
  const AttentionPlan& plan = *inputs.plan;
  const KvShape& shape = inputs.cache->shape();
  const int group = inputs.heads / shape.kv_heads;
  const auto attend =
      shape.dtype == DataType::kFloat32 ? kernels_.attention_float32 : kernels_.attention_bfloat16;
  AttentionQuery queries[kMaxQueries];
  AttentionArgs args;
  args.queries = queries;
  args.head_dim = shape.head_dim;
  args.stride = shape.stride();
  args.keys = inputs.cache->keys(inputs.layer, kv_head);
  args.values = inputs.cache->values(inputs.layer, kv_head);
  args.run = plan.slots.data() + plan.rows[block.first_row].run_first;

  const int count = block.row_count * group;
  for (int first = 0; first < count; first += kMaxQueries) {
    args.query_count = std::min(kMaxQueries, count - first);
    for (int i = 0; i < args.query_count; ++i) {
      const int row = block.first_row + (first + i) / group;
      const int64_t head = int64_t{row} * inputs.heads + kv_head * group + (first + i) % group;
      const RowView& view = plan.rows[row];
      queries[i] = {.q = inputs.queries + head * shape.stride(),
                    .run_count = view.run_count,
                    .extra = plan.extra.data() + view.extra_first,
                    .extra_count = view.extra_count,
                    .scores = scores + i * PaddedScores(plan),
                    .out = out + head * shape.head_dim};
    }
    attend(args);
  }
}

}  // namespace specfabric::model::cpu
