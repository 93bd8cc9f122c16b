#ifndef SPECFABRIC_BASE_CUDA_STAGED_COPIES_H_
#define SPECFABRIC_BASE_CUDA_STAGED_COPIES_H_

// Copies of much host memory to the device through a few pinned buffers: while one is filled, the
// device reads the others. Owned by one thread, on a stream of its own.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"

struct CUevent_st;

namespace specfabric::base::cuda {

struct DestroyEvent {
  void operator()(CUevent_st* event) const;
};
struct DestroyStream {
  void operator()(CUstream_st* stream) const;
};

class StagedCopies {
 public:
  // `count` buffers of `bytes`. Makes the device, which must outlive the result, current on the
  // calling thread. ResourceExhausted: there is not that much memory to pin.
  static absl::StatusOr<StagedCopies> Create(const Device& device, size_t bytes, int count);
  StagedCopies(StagedCopies&&) = default;
  StagedCopies& operator=(StagedCopies&&) = delete;
  ~StagedCopies();  // waits for the device

  // The next buffer, of the size given to Create, once the device has read what it last held.
  absl::StatusOr<std::byte*> Next();
  // Enqueues a copy of the first `bytes` of that buffer to `to`, in device memory.
  absl::Status Copy(size_t bytes, void* to);
  // Waits for all copies.
  absl::Status Finish();

 private:
  struct Buffer {
    PinnedBuffer memory;
    std::unique_ptr<CUevent_st, DestroyEvent> copied;
  };
  StagedCopies() = default;

  std::unique_ptr<CUstream_st, DestroyStream> stream_;
  std::vector<Buffer> buffers_;
  size_t current_ = 0;
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_STAGED_COPIES_H_
