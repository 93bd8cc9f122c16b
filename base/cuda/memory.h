#ifndef SPECFABRIC_BASE_CUDA_MEMORY_H_
#define SPECFABRIC_BASE_CUDA_MEMORY_H_

// Memory of the current device, and pinned memory of the host, which the device copies directly.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace specfabric::base::cuda {

struct FreeDevice {
  void operator()(void* memory) const;
};
struct FreePinned {
  void operator()(void* memory) const;
};

// Uninitialised bytes; move-only. ResourceExhausted: there is not that much memory.
template <typename Free>
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> Create(size_t bytes);

  size_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(memory_.get());
  }
  // Grows to at least `bytes`; growing loses the contents. No enqueued work may still use the
  // buffer.
  absl::Status Reserve(size_t bytes);

 private:
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

using DeviceBuffer = Buffer<FreeDevice>;
using PinnedBuffer = Buffer<FreePinned>;

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_MEMORY_H_
