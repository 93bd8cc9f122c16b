// Passes of CudaTransformer over several pipeline stages.

#include <algorithm>
#include <utility>

#include "model/cuda/cuda_transformer.h"
#include "model/parallel/micro_batches.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Upload;

// About the number of rows at which an H100 takes as long for arithmetic as for reading the
// weights; see cpu_transformer.cc.
constexpr int kMicroBatchRows = 256;

}  // namespace

// Runs all rows at once, through one stage after another.
absl::Status CudaTransformer::EnqueueStages(const PassInputs& inputs, const PassSize& size) {
  const int stage = partition_.stage, last_stage = partition_.stages - 1;
  const int64_t count = int64_t{size.rows} * config_.hidden;
  absl::Status status = EnqueueEmbeddings(inputs.tokens, size.rows, stage_inputs_.As<float>());
  stream_rows_ = stage == 0 ? stage_inputs_.As<float>() : residual_.As<float>();
  if (stage > 0) status.Update(collectives_->HandOver(nullptr, 0, stream_rows_, count));
  if (status.ok()) status = EnqueueLayers(inputs, size.rows, size.logit_rows);
  if (stage < last_stage) {
    status.Update(collectives_->HandOver(stream_rows_, count, nullptr, 0));
  } else {
    const size_t kept = size_t(size.logit_rows) * config_.hidden * sizeof(float);
    if (kept > 0) status.Update(device_->Copy(stream_rows_, kept, stage_results_.As<void>()));
  }
  status.Update(EnqueueLastRows(size.logit_rows));
  return status;
}

// Computes the logits of all rows from the last stage's result. A rank that failed calls it too:
// the others wait for its part.
absl::Status CudaTransformer::EnqueueLastRows(int32_t logit_rows) {
  if (logit_rows == 0) return absl::OkStatus();
  stream_rows_ = stage_results_.As<float>();
  absl::Status status =
      collectives_->FromLastStage(stream_rows_, int64_t{logit_rows} * config_.hidden);
  status.Update(Norm(weights_.final_norm, logit_rows));
  return status.ok() ? EnqueueHead(logit_rows) : status;
}

std::vector<Batch> CudaTransformer::MicroBatches(const Batch& batch) const {
  return SplitBatch(batch, kMicroBatchesPerStage * partition_.stages,
                    options_.micro_batch_rows == 0 ? kMicroBatchRows : options_.micro_batch_rows);
}

// As CpuTransformer::RunPipeline, but without waiting on the host: the streams order the transfers.
absl::Status CudaTransformer::EnqueuePipeline(const Batch& batch, const std::vector<Batch>& parts) {
  const base::TokenId* tokens = nullptr;
  upload_.Add(absl::MakeConstSpan(batch.tokens), &tokens);
  absl::Status status = upload_.Copy(*device_);
  if (!status.ok()) return status;
  status.Update(EnqueueEmbeddings(tokens, batch.rows(), stage_inputs_.As<float>()));
  status.Update(EnqueueHandOvers(parts));
  status.Update(EnqueueLastRows(static_cast<int32_t>(batch.logit_rows.size())));
  return status;
}

absl::Status CudaTransformer::EnqueueHandOvers(const std::vector<Batch>& parts) {
  const int count = static_cast<int>(parts.size());
  const int stage = partition_.stage, last_stage = partition_.stages - 1;
  const int64_t hidden = config_.hidden;
  const auto rows_in = [&](int part) { return part < 0 || part >= count ? 0 : parts[part].rows(); };
  // One for each part: the first may still be read when the last is enqueued.
  if (parts.size() > part_uploads_.size()) part_uploads_.resize(parts.size());
  float* embeddings = stage_inputs_.As<float>();
  float* results = stage_results_.As<float>();
  absl::Status status;
  for (int slot = 0; slot < count + last_stage; ++slot) {
    const int part = slot - stage;
    const int64_t out = rows_in(part) * hidden;
    if (out > 0) {
      stream_rows_ = stage == 0 ? embeddings : residual_.As<float>();
      status.Update(EnqueuePart(parts[part], &part_uploads_[part]));
      if (stage == 0) embeddings += out;
      if (stage == last_stage) {
        const int64_t kept = static_cast<int64_t>(parts[part].logit_rows.size()) * hidden;
        if (kept > 0) status.Update(device_->Copy(stream_rows_, kept * sizeof(float), results));
        results += kept;
      }
    }
    if (slot + 1 == count + last_stage) break;
    const int64_t in = stage == 0 ? 0 : rows_in(part + 1) * hidden;
    status.Update(collectives_->HandOver(stream_rows_, stage == last_stage ? 0 : out,
                                         incoming_.As<float>(), in));
    if (in > 0) std::swap(residual_, incoming_);
  }
  return status;
}

// Applies this rank's layers to the residual stream of some of the batch's rows.
absl::Status CudaTransformer::EnqueuePart(const Batch& part, Upload* upload) {
  if (absl::Status status = PlanAttention(part); !status.ok()) return status;
  if (absl::Status planned = PlanFlash(part); !planned.ok()) return planned;
  absl::StatusOr<PassInputs> inputs = CopyInputs(part, upload);
  if (!inputs.ok()) return inputs.status();
  return EnqueueLayers(*inputs, part.rows(), static_cast<int32_t>(part.logit_rows.size()));
}

}  // namespace specfabric::model::cuda
