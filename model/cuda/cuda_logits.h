#ifndef SPECFABRIC_MODEL_CUDA_CUDA_LOGITS_H_
#define SPECFABRIC_MODEL_CUDA_CUDA_LOGITS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/logit_matrix.h"
#include "base/cuda/memory.h"
#include "model/device_logits.h"

namespace specfabric::model::cuda {

// The float32 logits of one rank's last pass. Used by the rank's thread; the device must outlive
// it.
class CudaLogits : public DeviceLogits {
 public:
  explicit CudaLogits(const base::cuda::Device* device) : device_(device) {}

  void Set(const base::cuda::LogitMatrix& matrix) { matrix_ = matrix; }
  base::cuda::LogitMatrix matrix() const override { return matrix_; }
  absl::StatusOr<const float*> Fetch(absl::Span<const int32_t> rows) override;

 private:
  const base::cuda::Device* const device_;
  base::cuda::LogitMatrix matrix_;
  base::cuda::PinnedBuffer fetched_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_CUDA_LOGITS_H_
