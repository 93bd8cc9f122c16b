#include "base/cuda/staged_copies.h"

#include <cstring>

#include "base/cuda/error.h"

namespace specfabric::base::cuda {

absl::StatusOr<PinnedRing> PinnedRing::Create(size_t bytes, int count) {
  PinnedRing ring;
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<PinnedBuffer> memory = PinnedBuffer::Create(bytes);
    if (!memory.ok()) return memory.status();
    absl::StatusOr<Event> copied = MakeEvent(EventUse::kOrder);
    if (!copied.ok()) return copied.status();
    std::memset(memory->As<void>(), 0, bytes);
    ring.buffers_.push_back({*std::move(memory), *std::move(copied)});
  }
  return ring;
}

absl::StatusOr<std::byte*> PinnedRing::Next() {
  current_ = (current_ + 1) % buffers_.size();
  Buffer& buffer = buffers_[current_];
  // At once if nothing has been copied from it yet.
  absl::Status read = ToStatus(cudaEventSynchronize(buffer.copied.get()), "an earlier copy");
  if (!read.ok()) return read;
  return buffer.memory.As<std::byte>();
}

absl::Status PinnedRing::Copy(size_t bytes, void* to, Stream stream) {
  const Buffer& buffer = buffers_[current_];
  cudaError_t error =
      cudaMemcpyAsync(to, buffer.memory.As<void>(), bytes, cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) error = cudaEventRecord(buffer.copied.get(), stream);
  return ToStatus(error, "a copy to the device");
}

void DestroyStream::operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }

absl::StatusOr<StagedCopies> StagedCopies::Create(const Device& device, size_t bytes, int count) {
  if (absl::Status current = device.MakeCurrent(); !current.ok()) return current;
  absl::StatusOr<PinnedRing> ring = PinnedRing::Create(bytes, count);
  if (!ring.ok()) return ring.status();
  StagedCopies copies(*std::move(ring));
  cudaStream_t stream = nullptr;
  absl::Status status =
      ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream for copies");
  copies.stream_.reset(stream);
  if (!status.ok()) return status;
  return copies;
}

// The buffers must not be freed while the device reads them.
StagedCopies::~StagedCopies() {
  if (stream_ != nullptr) (void)Finish();
}

absl::Status StagedCopies::Finish() {
  return ToStatus(cudaStreamSynchronize(stream_.get()), "copies to the device");
}

}  // namespace specfabric::base::cuda
