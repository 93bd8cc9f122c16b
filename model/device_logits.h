#ifndef SPECFABRIC_MODEL_DEVICE_LOGITS_H_
#define SPECFABRIC_MODEL_DEVICE_LOGITS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/logit_matrix.h"

namespace specfabric::model {

// One rank's part of a pass's logits, in the memory of the device that computed them. Rows are
// logit rows of the pass, from 0 on.
class DeviceLogits {
 public:
  virtual ~DeviceLogits() = default;
  // Valid until the rank's next pass.
  virtual base::cuda::LogitMatrix matrix() const = 0;
  // These rows, [rows.size()][width], in the host's memory until the next Fetch or pass.
  // ResourceExhausted or Internal: the device failed.
  virtual absl::StatusOr<const float*> Fetch(absl::Span<const int32_t> rows) = 0;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_DEVICE_LOGITS_H_
