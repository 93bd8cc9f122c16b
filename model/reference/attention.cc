#include "model/reference/attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"

namespace specfabric::model::reference {
namespace {

// The physical slots that a row sees, in order: [visible].
at::Tensor VisibleSlots(const AttentionPlan& plan, const RowView& view) {
  std::vector<int64_t> slots(plan.slots.begin() + view.run_first,
                             plan.slots.begin() + view.run_first + view.run_count);
  slots.insert(slots.end(), plan.extra.begin() + view.extra_first,
               plan.extra.begin() + view.extra_first + view.extra_count);
  return at::tensor(slots, at::kLong);
}

// One KV head's keys or values of those slots, in float32: [visible][head_dim].
at::Tensor Gather(void* plane, const KvShape& shape, const at::Tensor& slots) {
  const at::ScalarType type = shape.dtype == DataType::kFloat32 ? at::kFloat : at::kBFloat16;
  const at::Tensor all = at::from_blob(plane, {shape.slots(), shape.stride()}, type);
  return at::index_select(all, 0, slots).to(at::kFloat).narrow(1, 0, shape.head_dim);
}

void AttendRow(const AttentionInputs& inputs, int row, float* out) {
  const KvShape& shape = inputs.cache->shape();
  const int64_t group = inputs.heads / shape.kv_heads;
  const at::Tensor slots = VisibleSlots(*inputs.plan, inputs.plan->rows[row]);
  float* queries =
      const_cast<float*>(inputs.queries) + int64_t{row} * inputs.heads * shape.stride();
  for (int head = 0; head < shape.kv_heads; ++head) {
    const at::Tensor q =
        at::from_blob(queries + head * group * shape.stride(), {group, shape.stride()}, at::kFloat)
            .narrow(1, 0, shape.head_dim);  // [group][d]
    const at::Tensor k = Gather(inputs.cache->keys(inputs.layer, head), shape, slots);    // [n][d]
    const at::Tensor v = Gather(inputs.cache->values(inputs.layer, head), shape, slots);  // [n][d]
    const at::Tensor weights = at::softmax(at::matmul(q, k.t()), -1);  // [group][n]
    const at::Tensor attended = at::matmul(weights, v).contiguous();   // [group][d]
    std::memcpy(out + head * group * shape.head_dim, attended.data_ptr<float>(),
                sizeof(float) * group * shape.head_dim);
  }
}

}  // namespace

absl::Status Attention(const AttentionInputs& inputs, float* out) {
  try {
    const at::NoGradGuard no_grad;
    const int64_t row_size = int64_t{inputs.heads} * inputs.cache->shape().head_dim;
    for (size_t row = 0; row < inputs.plan->rows.size(); ++row) {
      AttendRow(inputs, static_cast<int>(row), out + row * row_size);
    }
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("libtorch attention: ", e.what()));
  }
}

}  // namespace specfabric::model::reference
