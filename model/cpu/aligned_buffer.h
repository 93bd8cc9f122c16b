#ifndef SPECFABRIC_MODEL_CPU_ALIGNED_BUFFER_H_
#define SPECFABRIC_MODEL_CPU_ALIGNED_BUFFER_H_

// Large zero-filled memory for packed weights and KV caches: page-aligned, in huge pages where the
// kernel grants them, taken from the machine only when touched.

#include <cstddef>

#include "absl/status/statusor.h"

namespace specfabric::model {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // ResourceExhausted if the machine refuses.
  static absl::StatusOr<AlignedBuffer> Create(size_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CPU_ALIGNED_BUFFER_H_
