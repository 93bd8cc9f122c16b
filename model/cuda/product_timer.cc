#include "model/cuda/product_timer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/cuda/compare.h"
#include "model/cuda/some_values.h"

namespace specfabric::model::cuda {
namespace {

constexpr size_t kMostResultBytes = size_t{256} << 20;

// Values between -1 and 1 that differ from place to place.
std::vector<uint16_t> SomeInputs(int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = SomeValue(i, 1);
  return values;
}

}  // namespace

absl::StatusOr<ProductTimer> ProductTimer::Create(const base::cuda::Device* device) {
  absl::StatusOr<ColdTimer> timer = ColdTimer::Create(device);
  if (!timer.ok()) return timer.status();
  ProductTimer products(device, *std::move(timer));
  absl::Status status = products.differing_.Reserve(sizeof(uint32_t));
  if (!status.ok()) return status;
  return products;
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

absl::StatusOr<float> ProductTimer::Time(Run run) {
  ProductArgs args = args_;
  args.out = other_.As<void>();
  std::array<float, 5> times = {};
  for (float& time : times) {
    const absl::StatusOr<float> took = timer_.Milliseconds([&] { return run(args); });
    if (!took.ok()) return took.status();
    time = *took;
  }
  std::sort(times.begin(), times.end());
  return 1000 * times[times.size() / 2];
}

}  // namespace specfabric::model::cuda
