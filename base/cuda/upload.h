#ifndef SPECFABRIC_BASE_CUDA_UPLOAD_H_
#define SPECFABRIC_BASE_CUDA_UPLOAD_H_

// Arrays of the host's that go to the device in one copy, through pinned memory. Both memories are
// kept and grow; what was copied stays until the next Copy.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"

namespace specfabric::base::cuda {

class Upload {
 public:
  // Of the next Copy. Until then `values` and `to` stay where they are, and what is in them may
  // still change; Copy sets *to to where the values are on the device, aligned to 16 bytes, and may
  // so change values that were added.
  template <typename T>
  void Add(absl::Span<const T> values, const T** to) {
    parts_.push_back({values.data(), values.size() * sizeof(T), to});
  }
  // Enqueues, and forgets what was added, even after an error. Nothing that was enqueued may still
  // use the copy before, which Device::Finish tells. ResourceExhausted or Internal: the device's
  // own error; nothing is enqueued then.
  absl::Status Copy(const Device& device);

 private:
  struct Part {
    const void* from = nullptr;
    size_t bytes = 0;
    void* to = nullptr;  // a pointer to constant values of some type
  };
  std::vector<Part> parts_;
  PinnedBuffer staged_;
  DeviceBuffer copied_;
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_UPLOAD_H_
