// What only a CudaTransformer does that is a block drafter.

#include "model/cuda/cuda_transformer.h"
#include "model/cuda/state_rows.h"
#include "model/hidden_states.h"

namespace specfabric::model::cuda {

absl::Status CudaTransformer::WriteContext(const Batch& batch) {
  if (!block_) return RankModel::WriteContext(batch);
  absl::Status status = CheckFusedStates(config_, /*wanted=*/true, batch);
  if (!status.ok() || batch.rows() == 0) return status;
  if (status = PlanAttention(batch); !status.ok()) return status;
  status = device_->MakeCurrent();
  status.Update(ReserveRows(batch.rows(), 0));
  if (!status.ok()) return status;
  status = EnqueueContext(batch);
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_->Finish());
  return status;
}

absl::Status CudaTransformer::EnqueueContext(const Batch& batch) {
  const int32_t rows = batch.rows();
  absl::StatusOr<PassInputs> inputs = CopyInputs(batch, &upload_);
  if (!inputs.ok()) return inputs.status();
  absl::Status status = EnqueueFuseInputs({.from_type = DataType::kFloat32,
                                           .type = options_.dtype,
                                           .rows = rows,
                                           .runs = 1,
                                           .run = config_.hidden,
                                           .from = inputs->states,
                                           .out = normed_.As<void>()},
                                          device_->stream());
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    status.Update(products_->Multiply(options_.dtype, block_->keys_and_values(layer),
                                      normed_.As<void>(), rows, qkv_.As<float>()));
    PlaceArgs place = PlaceOf(*inputs, layer, rows);
    // There are no queries.
    if (place.bias != nullptr) place.bias += ptrdiff_t{config_.heads} * config_.head_dim;
    place.cache.heads = 0;
    place.query_norm = nullptr;
    status.Update(EnqueuePlace(place, device_->stream()));
  }
  return status;
}

absl::StatusOr<LogitShard> CudaTransformer::ContinueBlock(absl::Span<const BlockNode> nodes,
                                                          absl::Span<const float> states) {
  if (!block_ || block_->head() == nullptr) return RankModel::ContinueBlock(nodes, states);
  const absl::StatusOr<float*> logits = block_->head()->Continue(
      nodes, states, {.outputs = normed_.As<void>(), .logits = logits_.As<float>()});
  if (!logits.ok()) return logits.status();
  return SharedLogits(*logits, static_cast<int32_t>(nodes.size()));
}

absl::Span<const float> CudaTransformer::confidences() const {
  return block_ && block_->head() != nullptr ? block_->head()->confidences()
                                             : absl::Span<const float>();
}

}  // namespace specfabric::model::cuda
