#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_DEVICE_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_DEVICE_H_

// What the kernels of tree attention share on the host.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/memory.h"
#include "base/cuda/staged_copies.h"
#include "base/cuda/stream.h"
#include "model/cuda/tree_attention.h"

namespace specfabric::model::cuda {

// Sets `processors` to the current device's streaming multiprocessors. Internal: the device's
// error.
absl::Status CountProcessors(int32_t* processors);

// InvalidArgument: memory that is not aligned to 16 bytes.
absl::Status CheckAligned(const LayerAttention& layer);

// The way of plans to the device: the next is put together while the last is still being copied.
class PlanStaging {
 public:
  // Takes the memory of plans of at most `bytes`, on the host and on the current device.
  // ResourceExhausted: no memory. Internal: the device's own error.
  absl::Status Reserve(size_t bytes);
  // Memory for the next plan. Waits only if the device has not yet made the copy of two plans ago.
  absl::StatusOr<std::byte*> Next() { return ring_.Next(); }
  // Enqueues the copy of what was written to it; earlier work of the stream uses the plan before.
  absl::Status Copy(size_t bytes, base::cuda::Stream stream) {
    return ring_.Copy(bytes, device_.As<void>(), stream);
  }
  // The plan on the device, always at the same address.
  std::byte* device() const { return device_.As<std::byte>(); }

 private:
  base::cuda::PinnedRing ring_;
  base::cuda::DeviceBuffer device_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_DEVICE_H_
