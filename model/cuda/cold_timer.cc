#include "model/cuda/cold_timer.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "base/cuda/error.h"
#include "model/cuda/compare.h"

namespace specfabric::model::cuda {

using base::cuda::Event;
using base::cuda::EventUse;
using base::cuda::ToStatus;

absl::StatusOr<ColdTimer> ColdTimer::Create(const base::cuda::Device* device, size_t flushed) {
  ColdTimer timer(device);
  for (Event* event : {&timer.begin_, &timer.end_}) {
    absl::StatusOr<Event> made = base::cuda::MakeEvent(EventUse::kTime);
    if (!made.ok()) return made.status();
    *event = *std::move(made);
  }
  absl::Status status;
  if (flushed == 0) {
    cudaDeviceProp properties = {};
    status =
        ToStatus(cudaGetDeviceProperties(&properties, device->ordinal()), "a device's properties");
    flushed = 2 * static_cast<size_t>(properties.l2CacheSize);
  }
  status.Update(timer.flushed_.Reserve(flushed));
  status.Update(timer.differing_.Reserve(sizeof(uint32_t)));
  if (!status.ok()) return status;
  if (flushed > 0) status = device->Clear(timer.flushed_.As<void>(), flushed);
  status.Update(device->Clear(timer.differing_.As<void>(), sizeof(uint32_t)));
  if (!status.ok()) return status;
  return timer;
}

// What is read last takes the cache's place of what was read before. Were it written, it would have
// to be written back while the work is timed. Meanwhile the host enqueues that.
absl::StatusOr<float> ColdTimer::Milliseconds(absl::FunctionRef<absl::Status()> enqueue) {
  absl::Status status;
  const auto half = static_cast<int64_t>(flushed_.bytes() / sizeof(uint32_t) / 2);
  if (half > 0) {
    const auto* const words = flushed_.As<uint32_t>();
    status = EnqueueCountDifferent(words, words + half, half, differing_.As<uint32_t>(),
                                   device_->stream());
  }
  status.Update(ToStatus(cudaEventRecord(begin_.get(), device_->stream()), "an event"));
  status.Update(enqueue());
  status.Update(ToStatus(cudaEventRecord(end_.get(), device_->stream()), "an event"));
  status.Update(device_->Finish());
  float milliseconds = 0;
  status.Update(ToStatus(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "a time"));
  if (!status.ok()) return status;
  return milliseconds;
}

}  // namespace specfabric::model::cuda
