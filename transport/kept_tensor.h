#ifndef SPECFABRIC_TRANSPORT_KEPT_TENSOR_H_
#define SPECFABRIC_TRANSPORT_KEPT_TENSOR_H_

// A received tensor that outlives its callback.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "transport/fabric.h"
#include "transport/slot_pool.h"

namespace specfabric::transport {

// Large tensors lie in a registered slot, small ones are a copy.
struct KeptTensor {
  TensorFields fields = {};
  Lease lease = {};
  uint32_t lease_bytes = 0;
  std::vector<uint8_t> copy = {};
  bool on_device() const { return lease && lease.pool()->options().kind == MemoryKind::kCuda; }
  absl::Span<const uint8_t> bytes() const {
    return lease ? absl::MakeConstSpan(lease.data(), lease_bytes) : absl::MakeConstSpan(copy);
  }
};

// Copies a tensor in a buffer of UCX, which is valid only during the callback.
inline KeptTensor Keep(Tensor&& tensor) {
  KeptTensor kept = {.fields = tensor.fields};
  if (tensor.lease) {
    kept.lease = std::move(tensor.lease);
    kept.lease_bytes = static_cast<uint32_t>(tensor.bytes.size());
  } else {
    kept.copy.assign(tensor.bytes.begin(), tensor.bytes.end());
  }
  return kept;
}

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_KEPT_TENSOR_H_
