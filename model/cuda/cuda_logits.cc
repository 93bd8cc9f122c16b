#include "model/cuda/cuda_logits.h"

namespace specfabric::model::cuda {

absl::StatusOr<const float*> CudaLogits::Fetch(absl::Span<const int32_t> rows) {
  const size_t width = matrix_.size, bytes = width * sizeof(float);
  absl::Status status = device_->MakeCurrent();
  status.Update(fetched_.Reserve(rows.size() * bytes));
  if (!status.ok()) return status;
  const auto* const logits = static_cast<const float*>(matrix_.logits);
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {  // one copy for consecutive rows
    for (end = i + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    status.Update(device_->ToHost(logits + rows[i] * matrix_.stride, (end - i) * bytes,
                                  fetched_.As<float>() + i * width));
  }
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  return fetched_.As<float>();
}

}  // namespace specfabric::model::cuda
