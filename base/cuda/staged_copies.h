#ifndef SPECFABRIC_BASE_CUDA_STAGED_COPIES_H_
#define SPECFABRIC_BASE_CUDA_STAGED_COPIES_H_

// Copies of host memory to the device through a few pinned buffers: while one is filled, the device
// reads the others.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/event.h"
#include "base/cuda/memory.h"
#include "base/cuda/stream.h"

namespace specfabric::base::cuda {

// The buffers, in turn. Not for two threads at once; what was enqueued must have run before it
// ends.
class PinnedRing {
 public:
  // `count` buffers of `bytes` zeros. ResourceExhausted: there is not that much memory to pin.
  static absl::StatusOr<PinnedRing> Create(size_t bytes, int count);

  // The next buffer. Waits only if the device has not yet read what it last held.
  absl::StatusOr<std::byte*> Next();
  // Enqueues a copy of the first `bytes` of that buffer to `to`, in device memory.
  absl::Status Copy(size_t bytes, void* to, Stream stream);

 private:
  struct Buffer {
    PinnedBuffer memory;
    Event copied;
  };

  std::vector<Buffer> buffers_;
  size_t current_ = 0;
};

struct DestroyStream {
  void operator()(CUstream_st* stream) const;
};

// Copies of much memory, by one thread, on a stream of its own.
class StagedCopies {
 public:
  // Makes the device, which must outlive the result, current on the calling thread. Errors are
  // those of PinnedRing.
  static absl::StatusOr<StagedCopies> Create(const Device& device, size_t bytes, int count);
  StagedCopies(StagedCopies&&) = default;
  StagedCopies& operator=(StagedCopies&&) = delete;
  ~StagedCopies();  // waits for the device

  // As PinnedRing's.
  absl::StatusOr<std::byte*> Next() { return ring_.Next(); }
  absl::Status Copy(size_t bytes, void* to) { return ring_.Copy(bytes, to, stream_.get()); }
  // Waits for all copies.
  absl::Status Finish();

 private:
  explicit StagedCopies(PinnedRing ring) : ring_(std::move(ring)) {}

  PinnedRing ring_;
  std::unique_ptr<CUstream_st, DestroyStream> stream_;  // null: moved from
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_STAGED_COPIES_H_
