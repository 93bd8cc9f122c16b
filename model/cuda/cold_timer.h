#ifndef SPECFABRIC_MODEL_CUDA_COLD_TIMER_H_
#define SPECFABRIC_MODEL_CUDA_COLD_TIMER_H_

// How long work takes on a device with what it reads in memory and not in the device's cache.

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/event.h"
#include "base/cuda/memory.h"

namespace specfabric::model::cuda {

// Used by the device's thread. Enqueues on the device's stream, and waits for it.
class ColdTimer {
 public:
  // Before each run `flushed` bytes are read, to be more than the cache holds; 0: twice as much as
  // it does. The device must outlive the result. ResourceExhausted: there is not that much memory.
  static absl::StatusOr<ColdTimer> Create(const base::cuda::Device* device, size_t flushed = 0);

  // Of what `enqueue` enqueues. Errors are its own and the device's.
  absl::StatusOr<float> Milliseconds(absl::FunctionRef<absl::Status()> enqueue);

 private:
  explicit ColdTimer(const base::cuda::Device* device) : device_(device) {}

  const base::cuda::Device* device_;
  base::cuda::Event begin_, end_;
  base::cuda::DeviceBuffer flushed_, differing_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_COLD_TIMER_H_
