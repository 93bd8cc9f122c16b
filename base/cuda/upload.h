#ifndef SPECFABRIC_BASE_CUDA_UPLOAD_H_
#define SPECFABRIC_BASE_CUDA_UPLOAD_H_

// Copies several host arrays to the device as one, through pinned memory. Both buffers are kept and
// grow; the copied data stays valid until the next Copy.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"

namespace specfabric::base::cuda {

class Upload {
 public:
  // Adds an array to the next Copy. Until then `values` and `to` must stay where they are; their
  // contents may still change. Copy sets *to to the array's address on the device, aligned to 16
  // bytes, before it copies: *to may itself be part of an added array.
  template <typename T>
  void Add(absl::Span<const T> values, const T** to) {
    parts_.push_back({values.data(), values.size() * sizeof(T), to});
  }
  // Enqueues the copy and clears the list of arrays, even after an error. No enqueued work may
  // still use the previous copy (see Device::Finish). ResourceExhausted or Internal: an error of
  // the device; nothing is enqueued then.
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
