#include "base/cuda/staged_copies.h"

#include <utility>

#include "base/cuda/error.h"

namespace specfabric::base::cuda {

void DestroyEvent::operator()(CUevent_st* event) const { cudaEventDestroy(event); }
void DestroyStream::operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }

absl::StatusOr<StagedCopies> StagedCopies::Create(const Device& device, size_t bytes, int count) {
  if (absl::Status current = device.MakeCurrent(); !current.ok()) return current;
  StagedCopies copies;
  cudaStream_t stream = nullptr;
  absl::Status status =
      ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream for copies");
  if (!status.ok()) return status;
  copies.stream_.reset(stream);
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<PinnedBuffer> memory = PinnedBuffer::Create(bytes);
    if (!memory.ok()) return memory.status();
    cudaEvent_t event = nullptr;
    status =
        ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event of a copy");
    if (!status.ok()) return status;
    copies.buffers_.push_back(
        {*std::move(memory), std::unique_ptr<CUevent_st, DestroyEvent>(event)});
  }
  return copies;
}

// The buffers must not be freed while the device reads them.
StagedCopies::~StagedCopies() {
  if (!buffers_.empty()) (void)Finish();
}

absl::StatusOr<std::byte*> StagedCopies::Next() {
  current_ = (current_ + 1) % buffers_.size();
  Buffer& buffer = buffers_[current_];
  // At once if nothing has been copied from it yet.
  absl::Status read = ToStatus(cudaEventSynchronize(buffer.copied.get()), "an earlier copy");
  if (!read.ok()) return read;
  return buffer.memory.As<std::byte>();
}

absl::Status StagedCopies::Copy(size_t bytes, void* to) {
  Buffer& buffer = buffers_[current_];
  absl::Status status = ToStatus(
      cudaMemcpyAsync(to, buffer.memory.As<void>(), bytes, cudaMemcpyHostToDevice, stream_.get()),
      "a copy to the device");
  status.Update(
      ToStatus(cudaEventRecord(buffer.copied.get(), stream_.get()), "an event of a copy"));
  return status;
}

absl::Status StagedCopies::Finish() {
  return ToStatus(cudaStreamSynchronize(stream_.get()), "copies to the device");
}

}  // namespace specfabric::base::cuda
