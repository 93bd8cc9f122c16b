#include "model/reference/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::model::reference {
namespace {

constexpr int kRowsAtOnce = 4;

class TorchLinear : public Linear {
 public:
  TorchLinear(const LinearShape& shape, DataType dtype, bool batch_invariant,
              const WeightReader& read)
      : shape_(shape),
        type_(dtype == DataType::kFloat32 ? at::kFloat : at::kBFloat16),
        batch_invariant_(batch_invariant) {
    at::Tensor weights = at::empty({shape.outputs, shape.inputs}, at::kFloat);
    for (int32_t output = 0; output < shape.outputs; ++output) {
      read(output, weights.data_ptr<float>() + int64_t{output} * shape.inputs);
    }
    weights_ = weights.to(type_);
  }

  absl::Status Forward(const float* x, int rows, float* out) override {
    try {
      const at::NoGradGuard no_grad;
      const int step = batch_invariant_ ? kRowsAtOnce : rows;
      for (int row = 0; row < rows; row += step) {
        const int count = std::min(step, rows - row);
        at::Tensor inputs = at::zeros({step, shape_.inputs}, at::kFloat);
        std::memcpy(inputs.data_ptr<float>(), x + int64_t{row} * shape_.inputs,
                    sizeof(float) * count * shape_.inputs);
        const at::Tensor y = at::linear(inputs.to(type_), weights_).to(at::kFloat).contiguous();
        std::memcpy(out + int64_t{row} * shape_.outputs, y.data_ptr<float>(),
                    sizeof(float) * count * shape_.outputs);
      }
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("libtorch linear: ", e.what()));
    }
  }

 private:
  const LinearShape shape_;
  const at::ScalarType type_;
  const bool batch_invariant_;
  at::Tensor weights_;  // [outputs][inputs]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Linear>> MakeLinear(const LinearShape& shape, DataType dtype,
                                                   bool batch_invariant, const WeightReader& read) {
  try {
    return std::make_unique<TorchLinear>(shape, dtype, batch_invariant, read);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("libtorch linear: ", e.what()));
  }
}

bool IsBuilt() { return true; }

void SetThreads(int threads) { at::set_num_threads(threads); }

}  // namespace specfabric::model::reference
