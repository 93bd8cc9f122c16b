#ifndef SPECFABRIC_MODEL_CUDA_PRODUCT_TIMER_H_
#define SPECFABRIC_MODEL_CUDA_PRODUCT_TIMER_H_

// Trials of products on a device: the same bits, and how long one takes with the weights in memory
// and not in the GPU's cache, as they are in a pass.

#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/cuda/cold_timer.h"
#include "model/cuda/product.h"
#include "model/cuda/product_choice.h"

namespace specfabric::model::cuda {

// Used by the device's thread. Enqueues on the device's stream, and waits for it.
class ProductTimer {
 public:
  // Enqueues the product.
  using Run = absl::FunctionRef<absl::Status(const ProductArgs&)>;

  static absl::StatusOr<ProductTimer> Create(const base::cuda::Device* device);

  // Makes x and room for results of a product of bfloat16; weights, outputs, inputs and rows are
  // those of `args`. ResourceExhausted: there is no room, or results would take more than 256 MiB.
  absl::Status Prepare(const ProductArgs& args);
  // Whether its result is that of the first call since Prepare.
  absl::StatusOr<bool> Same(Run run);
  // Microseconds, the median of some runs.
  absl::StatusOr<float> Time(Run run);

 private:
  ProductTimer(const base::cuda::Device* device, ColdTimer timer)
      : device_(device), timer_(std::move(timer)) {}

  const base::cuda::Device* device_;
  ColdTimer timer_;
  base::cuda::DeviceBuffer x_, first_, other_, differing_;
  int64_t filled_ = 0;  // elements of x_ that have values
  ProductArgs args_;
  bool has_first_ = false;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PRODUCT_TIMER_H_
