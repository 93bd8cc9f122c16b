#ifndef SPECFABRIC_TARGET_DRAFT_PROBS_TENSOR_H_
#define SPECFABRIC_TARGET_DRAFT_PROBS_TENSOR_H_

// A tensor of draft probabilities as a target received it, before it is checked.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "speculation/draft_probs.h"
#include "transport/fabric.h"

namespace specfabric::target {

// Large tensors lie in a registered slot, small ones are a copy.
struct DraftProbsTensor {
  transport::TensorFields fields;
  transport::Lease lease;
  uint32_t lease_bytes = 0;
  std::vector<uint8_t> copy;
  bool on_device() const {
    return lease && lease.pool()->options().kind == transport::MemoryKind::kCuda;
  }
  absl::Span<const uint8_t> bytes() const {
    return lease ? absl::MakeConstSpan(lease.data(), lease_bytes) : absl::MakeConstSpan(copy);
  }
};

// Does for draft probabilities in a device's memory what speculation::DraftProbs::Open does for
// those in the host's.
using OpenOnDevice = std::function<absl::StatusOr<speculation::DraftProbs>(
    const speculation::DraftProbsShape&, absl::Span<const uint8_t>)>;

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFT_PROBS_TENSOR_H_
