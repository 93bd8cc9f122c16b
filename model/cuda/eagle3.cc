#include "model/cuda/eagle3.h"

#include <algorithm>
#include <cstring>

#include "model/cuda/state_rows.h"
#include "model/hidden_states.h"

namespace specfabric::model::cuda {
namespace {

constexpr size_t kFusedPlace = 16;  // bytes, so that rows are aligned

}  // namespace

// Of a pass, with the bytes that they need.
std::array<std::pair<base::cuda::DeviceBuffer*, size_t>, 3> Eagle3::Buffers(size_t rows,
                                                                            size_t logit_rows) {
  const size_t hidden = config_.hidden;
  return {{{&joined_, rows * 2 * hidden * base::Bytes(dtype_)},
           {&spread_, spreads() ? logit_rows * config_.vocabulary * sizeof(float) : 0},
           {&normed_, config_.states->norm_output ? logit_rows * hidden * sizeof(float) : 0}}};
}

bool Eagle3::Fits(size_t rows, size_t logit_rows) {
  for (const auto& [buffer, bytes] : Buffers(rows, logit_rows)) {
    if (bytes > buffer->bytes()) return false;
  }
  return true;
}

absl::Status Eagle3::Reserve(size_t rows, size_t logit_rows) {
  absl::Status status;
  for (const auto& [buffer, bytes] : Buffers(rows, logit_rows))
    status.Update(buffer->Reserve(bytes));
  return status;
}

absl::Status Eagle3::EnqueueJoin(const float* states, int32_t rows, float* residual) const {
  return EnqueueJoinStates({.type = dtype_,
                            .rows = rows,
                            .hidden = config_.hidden,
                            .epsilon = config_.rms_epsilon,
                            .states = states,
                            .embedding_weight = weights_.layers.front().attention_norm.As<float>(),
                            .state_weight = weights_.drafter->state_norm.As<float>(),
                            .begins_normed = config_.states->norm_before_residual,
                            .residual = residual,
                            .joined = joined_.As<void>()},
                           device_.stream());
}

absl::Status Eagle3::EnqueueTail(const float* logits, const NormArgs& norm) const {
  absl::Status status;
  if (spreads()) {
    status.Update(EnqueueSpreadLogits({.rows = norm.rows,
                                       .scored = config_.states->draft_vocabulary,
                                       .vocabulary = config_.vocabulary,
                                       .logits = logits,
                                       .places = weights_.drafter->places.As<int32_t>(),
                                       .out = spread_.As<float>()},
                                      device_.stream()));
  }
  if (config_.states->norm_output) {
    NormArgs whole = norm;  // not rounded
    whole.type = DataType::kFloat32;
    whole.normed = normed_.As<void>();
    status.Update(EnqueueAddAndNorm(whole, device_.stream()));
  }
  return status;
}

absl::Status Eagle3::EnqueueNextStates(const float* residual, int32_t rows) {
  next_rows_ = 0;
  const size_t bytes = static_cast<size_t>(rows) * config_.hidden * sizeof(float);
  absl::Status status = fetched_next_.Reserve(bytes);
  if (!status.ok() || rows == 0) return status;
  const float* from = config_.states->norm_output ? normed_.As<float>() : residual;
  status = device_.ToHost(from, bytes, fetched_next_.As<void>());
  if (status.ok()) next_rows_ = rows;
  return status;
}

// fused_ = fc of the states, without its bias, and whether these are finite.
absl::Status Eagle3::EnqueueFuse(const StateRows& states) {
  const StateDrafter& drafter = *config_.states;
  const auto layers = static_cast<int32_t>(drafter.layers.size());
  const bool one_run = drafter.norm_before_fc;
  FuseInputsArgs inputs = {.from_type = states.type,
                           .type = dtype_,
                           .rows = states.rows,
                           .runs = one_run ? 1 : layers,
                           .run = (one_run ? layers : 1) * drafter.target_hidden,
                           .epsilon = config_.rms_epsilon,
                           .from = states.bytes.data(),
                           .weight = weights_.drafter->fuse_norm.As<float>(),
                           .out = fuse_inputs_.As<void>(),
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
  auto* const out = reinterpret_cast<float*>(fused_.As<std::byte>() + kFusedPlace);
  status.Update(products_.Multiply(dtype_, weights_.drafter->fuse, fuse_inputs_.As<void>(),
                                   states.rows, out));
  return status;
}

absl::StatusOr<bool> Eagle3::Fuse(const StateRows& states, float* fused) {
  const size_t hidden = config_.hidden, count = states.bytes.size() / base::Bytes(states.type);
  if (absl::Status size = CheckStateRows(*config_.states, count, states.rows); !size.ok()) {
    return size;
  }
  if (states.rows == 0) return true;
  const size_t padded = PaddedRows(states.rows), width = count / states.rows;
  const size_t bytes = kFusedPlace + states.rows * hidden * sizeof(float);
  absl::Status status = device_.MakeCurrent();
  status.Update(fuse_inputs_.Reserve(padded * width * base::Bytes(dtype_)));
  status.Update(fused_.Reserve(kFusedPlace + padded * hidden * sizeof(float)));
  status.Update(fetched_.Reserve(bytes));
  if (!status.ok()) return status;
  status.Update(EnqueueFuse(states));
  if (status.ok()) status.Update(device_.ToHost(fused_.As<void>(), bytes, fetched_.As<void>()));
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_.Finish());
  if (!status.ok()) return status;
  std::memcpy(fused, fetched_.As<std::byte>() + kFusedPlace, bytes - kFusedPlace);
  const std::vector<float>& bias = weights_.drafter->fuse_bias;
  for (int32_t row = 0; row < states.rows; ++row) {
    for (size_t i = 0; i < bias.size(); ++i) fused[row * hidden + i] += bias[i];
  }
  return *fetched_.As<int32_t>() == 0;
}

}  // namespace specfabric::model::cuda
