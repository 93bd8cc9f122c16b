#include "model/cuda/product_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bfloat16.h"
#include "base/cuda/error.h"
#include "base/hash.h"
#include "model/cuda/compare.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::ToStatus;

constexpr size_t kMostResultBytes = size_t{256} << 20;

absl::Status MakeEvent(std::unique_ptr<CUevent_st, DestroyEvent>* event) {
  cudaEvent_t made = nullptr;
  absl::Status status = ToStatus(cudaEventCreate(&made), "an event");
  event->reset(made);
  return status;
}

// Values between -1 and 1 that differ from place to place.
std::vector<uint16_t> SomeInputs(int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<int32_t>(base::Mix64(i) >> 40);  // 24 of them
    values[i] = base::RoundToBFloat16(static_cast<float>(bits) * 0x1p-23f - 1.0f);
  }
  return values;
}

}  // namespace

void DestroyEvent::operator()(CUevent_st* event) const { cudaEventDestroy(event); }

absl::StatusOr<ProductTimer> ProductTimer::Create(const base::cuda::Device* device) {
  ProductTimer timer(device);
  absl::Status status = MakeEvent(&timer.begin_);
  status.Update(MakeEvent(&timer.end_));
  cudaDeviceProp properties = {};
  status.Update(
      ToStatus(cudaGetDeviceProperties(&properties, device->ordinal()), "a device's properties"));
  // What is read last takes the cache's place of what was read before. Were it written, it would
  // have to be written back while a product is timed.
  status.Update(timer.flushed_.Reserve(2 * static_cast<size_t>(properties.l2CacheSize)));
  status.Update(timer.differing_.Reserve(sizeof(uint32_t)));
  if (!status.ok()) return status;
  return timer;
}

absl::Status ProductTimer::Prepare(const ProductArgs& args) {
  has_first_ = false;
  args_ = args;
  const size_t bytes = size_t(args.rows) * args.outputs * sizeof(float);
  if (bytes > kMostResultBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("results of ", bytes, " bytes; allowed: ", kMostResultBytes));
  }
  const int64_t count = int64_t{args.rows} * args.inputs;
  absl::Status status = first_.Reserve(bytes);
  status.Update(other_.Reserve(bytes));
  if (filled_ < count) {
    filled_ = 0;
    const std::vector<uint16_t> values = SomeInputs(count);
    status.Update(x_.Reserve(values.size() * sizeof(values[0])));
    if (!status.ok()) return status;
    status.Update(
        device_->ToDevice(values.data(), values.size() * sizeof(values[0]), x_.As<void>()));
    status.Update(device_->Finish());
    if (status.ok()) filled_ = count;
  }
  args_.x = x_.As<void>();
  return status;
}

absl::StatusOr<bool> ProductTimer::Same(Run run) {
  ProductArgs args = args_;
  args.out = has_first_ ? other_.As<void>() : first_.As<void>();
  absl::Status status = run(args);
  if (!has_first_) {
    has_first_ = true;
    status.Update(device_->Finish());
    if (!status.ok()) return status;
    return true;
  }
  uint32_t differing = 0;
  status.Update(device_->Clear(differing_.As<void>(), sizeof(differing)));
  status.Update(EnqueueCountDifferent(first_.As<uint32_t>(), other_.As<uint32_t>(),
                                      int64_t{args.rows} * args.outputs, differing_.As<uint32_t>(),
                                      device_->stream()));
  status.Update(device_->ToHost(differing_.As<void>(), sizeof(differing), &differing));
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  return differing == 0;
}

absl::StatusOr<float> ProductTimer::TimeOnce(Run run) {
  ProductArgs args = args_;
  args.out = other_.As<void>();
  absl::Status status;
  const auto half = static_cast<int64_t>(flushed_.bytes() / sizeof(uint32_t) / 2);
  if (half > 0) {
    const auto* const words = flushed_.As<uint32_t>();
    status = EnqueueCountDifferent(words, words + half, half, differing_.As<uint32_t>(),
                                   device_->stream());
  }
  status.Update(ToStatus(cudaEventRecord(begin_.get(), device_->stream()), "an event"));
  status.Update(run(args));
  status.Update(ToStatus(cudaEventRecord(end_.get(), device_->stream()), "an event"));
  status.Update(device_->Finish());
  float milliseconds = 0;
  status.Update(ToStatus(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "a time"));
  if (!status.ok()) return status;
  return milliseconds * 1000;
}

absl::StatusOr<float> ProductTimer::Time(Run run) {
  std::array<float, 5> times = {};
  for (float& time : times) {
    const absl::StatusOr<float> took = TimeOnce(run);
    if (!took.ok()) return took.status();
    time = *took;
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace specfabric::model::cuda
