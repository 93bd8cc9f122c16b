#include "model/cuda/block_parts.h"

#include <utility>

#include "model/checkpoint/load_weights.h"
#include "model/cuda/state_rows.h"
#include "model/cuda/weight_upload.h"

namespace specfabric::model::cuda {

absl::StatusOr<BlockParts> BlockParts::Load(const OpenedDrafter& drafter, const ModelConfig& config,
                                            DataType dtype, const DeviceDrafter* weights,
                                            const base::cuda::Device* device,
                                            const MatrixProducts* products) {
  BlockParts parts(config, weights, device);
  WeightUpload upload(device, dtype);
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  const MatrixFactory<Matrix> make = [&upload](const LinearShape& shape, const StoredRows& rows) {
    return upload.Add(shape, rows);
  };
  const loading::Loader<Matrix> loader(checkpoint, make);
  parts.keys_and_values_.resize(config.layers);
  absl::Status status;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    status.Update(loader.Layer(loading::KeyValueShards(checkpoint, config, layer), /*parts=*/1,
                               &parts.keys_and_values_[layer]));
  }
  if (status.ok() && config.states->block->sequential()) {
    absl::StatusOr<SequentialHead> head = SequentialHead::Load(
        drafter, config, dtype, weights->places.As<int32_t>(), device, products, &upload);
    if (!head.ok()) return head.status();
    parts.head_ = *std::move(head);
  }
  if (status.ok()) status = upload.Run();
  if (!status.ok()) return status;
  return parts;
}

void BlockParts::AddMatrices(std::vector<const Matrix*>* matrices) const {
  for (const Matrix& matrix : keys_and_values_) matrices->push_back(&matrix);
  if (head_) head_->AddMatrices(matrices);
}

bool BlockParts::Fits(size_t logit_rows) {
  return SpreadBytes(logit_rows) <= spread_.bytes() && (!head_ || head_->Fits(logit_rows));
}

absl::Status BlockParts::Reserve(size_t logit_rows) {
  absl::Status status = spread_.Reserve(SpreadBytes(logit_rows));
  if (head_) status.Update(head_->Reserve(logit_rows));
  return status;
}

absl::Status BlockParts::EnqueueTail(const float* logits, int32_t rows) const {
  if (!spreads()) return absl::OkStatus();
  return EnqueueSpreadLogits({.rows = rows,
                              .scored = config_->states->draft_vocabulary,
                              .vocabulary = config_->vocabulary,
                              .logits = logits,
                              .places = weights_->places.As<int32_t>(),
                              .out = spread_.As<float>()},
                             device_->stream());
}

}  // namespace specfabric::model::cuda
