#include "model/cuda/state_fuser.h"

#include <cstring>
#include <vector>

#include "model/cuda/layers.h"
#include "model/cuda/state_rows.h"
#include "model/hidden_states.h"

namespace specfabric::model::cuda {
namespace {

constexpr size_t kFusedPlace = 16;  // bytes, so that rows are aligned

}  // namespace

// fused_ = the states fused, but for fc's bias (where there is no fc, only normed), and whether
// they are finite.
absl::Status StateFuser::EnqueueFuse(const StateRows& states) {
  const StateDrafter& drafter = *config_.states;
  const auto layers = static_cast<int32_t>(drafter.layers.size());
  const bool one_run = drafter.norm_before_fc;
  auto* const out = reinterpret_cast<float*>(fused_.As<std::byte>() + kFusedPlace);
  FuseInputsArgs inputs = {.from_type = states.type,
                           .type = has_fc() ? dtype_ : DataType::kFloat32,
                           .rows = states.rows,
                           .runs = one_run ? 1 : layers,
                           .run = (one_run ? layers : 1) * drafter.target_hidden,
                           .epsilon = weights_.fuse_epsilon,
                           .from = states.bytes.data(),
                           .weight = weights_.fuse_norm.As<float>(),
                           .out = has_fc() ? inputs_.As<void>() : out,
                           .not_finite = fused_.As<int32_t>()};
  absl::Status status;
  if (!states.on_device) {
    const uint8_t* copied = nullptr;
    upload_.Add(states.bytes, &copied);
    status = upload_.Copy(device_);
    inputs.from = copied;
  }
  status.Update(device_.Clear(fused_.As<void>(), kFusedPlace));
  if (!status.ok()) return status;
  status.Update(EnqueueFuseInputs(inputs, device_.stream()));
  if (!has_fc()) return status;
  status.Update(products_.Multiply(dtype_, weights_.fuse, inputs_.As<void>(), states.rows, out));
  if (!drafter.block) return status;
  // In place: a thread writes the elements that it has read.
  status.Update(EnqueueAddAndNorm({.type = DataType::kFloat32,
                                   .rows = states.rows,
                                   .hidden = config_.hidden,
                                   .epsilon = config_.rms_epsilon,
                                   .residual = out,
                                   .weight = weights_.state_norm.As<float>(),
                                   .normed = out},
                                  device_.stream()));
  return status;
}

absl::StatusOr<bool> StateFuser::Fuse(const StateRows& states, float* fused) {
  const size_t hidden = config_.hidden, count = states.bytes.size() / base::Bytes(states.type);
  if (absl::Status size = CheckStateRows(*config_.states, count, states.rows); !size.ok()) {
    return size;
  }
  if (states.rows == 0) return true;
  const size_t padded = PaddedRows(states.rows), width = count / states.rows;
  const size_t bytes = kFusedPlace + states.rows * hidden * sizeof(float);
  absl::Status status = device_.MakeCurrent();
  if (has_fc()) status.Update(inputs_.Reserve(padded * width * base::Bytes(dtype_)));
  status.Update(fused_.Reserve(kFusedPlace + padded * hidden * sizeof(float)));
  status.Update(fetched_.Reserve(bytes));
  if (!status.ok()) return status;
  status.Update(EnqueueFuse(states));
  if (status.ok()) status.Update(device_.ToHost(fused_.As<void>(), bytes, fetched_.As<void>()));
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_.Finish());
  if (!status.ok()) return status;
  std::memcpy(fused, fetched_.As<std::byte>() + kFusedPlace, bytes - kFusedPlace);
  // Block drafters have none, whose norm would come after it.
  const std::vector<float>& bias = weights_.fuse_bias;
  for (int32_t row = 0; row < states.rows; ++row) {
    for (size_t i = 0; i < bias.size(); ++i) fused[row * hidden + i] += bias[i];
  }
  return *fetched_.As<int32_t>() == 0;
}

}  // namespace specfabric::model::cuda
