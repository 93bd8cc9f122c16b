#include "model/cpu/aligned_buffer.h"

#include <sys/mman.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::model {

absl::StatusOr<AlignedBuffer> AlignedBuffer::Create(size_t bytes) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // a hint: without huge pages it is only slower
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace specfabric::model
