#ifndef SPECFABRIC_BASE_CUDA_DEVICE_H_
#define SPECFABRIC_BASE_CUDA_DEVICE_H_

// One rank's GPU and the stream that all work of the rank is enqueued on. Owned by the rank's
// thread; a rank's thread may change between calls, so each begins with MakeCurrent.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"

namespace specfabric::base::cuda {

class Device {
 public:
  // ordinal: among the GPUs that the process sees (CUDA_VISIBLE_DEVICES). FailedPrecondition: there
  // is no such GPU; the message says how many there are.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int32_t ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  absl::Status MakeCurrent() const;
  int32_t ordinal() const { return ordinal_; }
  Stream stream() const { return stream_; }
  const std::string& name() const { return name_; }
  // In bytes. What other processes use is not free.
  struct Memory {
    int64_t free = 0, total = 0;
  };
  absl::StatusOr<Memory> ReadMemory() const;
  // Waits for everything that was enqueued and returns its errors.
  absl::Status Finish() const;

  // Enqueues a copy. The host memory is pinned and must not change until Finish.
  absl::Status ToDevice(const void* host, size_t bytes, void* device) const;
  absl::Status ToHost(const void* device, size_t bytes, void* host) const;
  // Enqueues: `bytes` of device memory become zeros.
  absl::Status Clear(void* memory, size_t bytes) const;
  // Enqueues a copy from device memory to other device memory.
  absl::Status Copy(const void* from, size_t bytes, void* to) const;

 private:
  explicit Device(int32_t ordinal) : ordinal_(ordinal) {}
  absl::Status Start();

  const int32_t ordinal_;
  std::string name_;
  Stream stream_ = nullptr;
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_DEVICE_H_
