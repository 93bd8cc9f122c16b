#include "model/cuda/state_joiner.h"

#include <optional>

#include "model/cuda/state_rows.h"

namespace specfabric::model::cuda {

// Of a pass, with the bytes that they need.
std::array<std::pair<base::cuda::DeviceBuffer*, size_t>, 3> StateJoiner::Buffers(
    size_t rows, size_t logit_rows) {
  const size_t hidden = config_.hidden;
  return {{{&joined_, rows * 2 * hidden * base::Bytes(dtype_)},
           {&spread_, spreads() ? logit_rows * config_.vocabulary * sizeof(float) : 0},
           {&normed_, config_.states->norm_output ? logit_rows * hidden * sizeof(float) : 0}}};
}

bool StateJoiner::Fits(size_t rows, size_t logit_rows) {
  for (const auto& [buffer, bytes] : Buffers(rows, logit_rows)) {
    if (bytes > buffer->bytes()) return false;
  }
  return true;
}

absl::Status StateJoiner::Reserve(size_t rows, size_t logit_rows) {
  absl::Status status;
  for (const auto& [buffer, bytes] : Buffers(rows, logit_rows))
    status.Update(buffer->Reserve(bytes));
  return status;
}

absl::Status StateJoiner::EnqueueJoin(const float* states, int32_t rows, float* residual) const {
  const std::optional<MtpDrafter>& mtp = config_.states->mtp;
  const base::cuda::DeviceBuffer& embedding_norm =
      mtp ? weights_.drafter->token_norm : weights_.layers.front().attention_norm;
  absl::Status status = EnqueueJoinStates({.type = dtype_,
                                           .rows = rows,
                                           .hidden = config_.hidden,
                                           .epsilon = config_.rms_epsilon,
                                           .embeddings = residual,
                                           .states = states,
                                           .embedding_weight = embedding_norm.As<float>(),
                                           .state_weight = weights_.drafter->state_norm.As<float>(),
                                           .state_first = mtp && mtp->state_first,
                                           .joined = joined_.As<void>(),
                                           .residual = mtp ? nullptr : residual,
                                           .begins_normed = config_.states->norm_before_residual},
                                          device_.stream());
  if (!mtp || !status.ok()) return status;
  return products_.Multiply(dtype_, weights_.drafter->projection, joined_.As<void>(), rows,
                            residual);
}

absl::Status StateJoiner::EnqueueTail(const float* logits, const NormArgs& norm) const {
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

absl::Status StateJoiner::EnqueueNextStates(const float* residual, int32_t rows) {
  next_rows_ = 0;
  const size_t bytes = static_cast<size_t>(rows) * config_.hidden * sizeof(float);
  absl::Status status = fetched_next_.Reserve(bytes);
  if (!status.ok() || rows == 0) return status;
  const float* from = config_.states->norm_output ? normed_.As<float>() : residual;
  status = device_.ToHost(from, bytes, fetched_next_.As<void>());
  if (status.ok()) next_rows_ = rows;
  return status;
}

}  // namespace specfabric::model::cuda
