#include "base/cuda/memory.h"

#include <algorithm>
#include <utility>

#include "base/cuda/error.h"

namespace specfabric::base::cuda {
namespace {

cudaError_t Allocate(const DeviceBuffer*, void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes);
}
cudaError_t Allocate(const PinnedBuffer*, void** memory, size_t bytes) {
  return cudaMallocHost(memory, bytes);
}
const char* NameOf(const DeviceBuffer*) { return "memory of the device"; }
const char* NameOf(const PinnedBuffer*) { return "pinned memory of the host"; }

}  // namespace

void FreeDevice::operator()(void* memory) const { cudaFree(memory); }
void FreePinned::operator()(void* memory) const { cudaFreeHost(memory); }

template <typename Free>
absl::StatusOr<Buffer<Free>> Buffer<Free>::Create(size_t bytes) {
  Buffer buffer;
  void* memory = nullptr;
  if (cudaError_t error = Allocate(&buffer, &memory, std::max<size_t>(bytes, 1));
      error != cudaSuccess) {
    cudaGetLastError();  // else the next launch would report it
    return ToStatus(error, absl::StrCat(bytes, " bytes of ", NameOf(&buffer)).c_str());
  }
  buffer.memory_.reset(memory);
  buffer.bytes_ = bytes;
  return buffer;
}

template <typename Free>
absl::Status Buffer<Free>::Reserve(size_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  *this = Buffer();  // frees first: both may not fit at once
  absl::StatusOr<Buffer> larger = Create(bytes);
  if (!larger.ok()) return larger.status();
  *this = *std::move(larger);
  return absl::OkStatus();
}

template class Buffer<FreeDevice>;
template class Buffer<FreePinned>;

}  // namespace specfabric::base::cuda
