#ifndef SPECFABRIC_MODEL_CUDA_LINEAR_H_
#define SPECFABRIC_MODEL_CUDA_LINEAR_H_

// Linear layers on the device: the products of product.h for 16-bit weights, cuBLAS's for float32
// and, where a row's bits may depend on other rows, wherever they are faster.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/data_type.h"
#include "model/cuda/product.h"
#include "model/cuda/product_choice.h"

struct cublasContext;

namespace specfabric::model::cuda {

class ProductTimer;

// Outputs of a linear layer on the device: [outputs][inputs].
struct Matrix {
  int32_t outputs = 0, inputs = 0;
  std::shared_ptr<base::cuda::DeviceBuffer> weights;  // shared where an embedding is also the head
};

// Rows of a product of float32 that is the same bits for each row: buffers that it reads or writes
// have room for a multiple of so many rows.
constexpr int32_t kInvariantRows = 64;
constexpr int32_t PaddedRows(int32_t rows) {
  return (rows + kInvariantRows - 1) / kInvariantRows * kInvariantRows;
}

// A gated product: rows of the matrix as GatedRow says.
struct GatedOutput {
  int32_t features = 0;
  const float* bias = nullptr;  // [2 * features] on the device, gates, then ups; null: none
  void* out = nullptr;          // [rows][features], of the type of x
  float* products = nullptr;    // [rows][outputs], for products that are not gated at once
};

// The matrix products of one device, on its stream; used by its thread.
class MatrixProducts {
 public:
  // The device must outlive it.
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(const base::cuda::Device* device,
                                                                bool batch_invariant);
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // Tries the kernels on matrices of bfloat16, each shape once, and keeps the fastest for each
  // class of row counts: one line in the log for each shape, with what was found. Begins no trial
  // once `budget` has passed; what was not tried, for want of time or of memory for 512 rows, keeps
  // the rule of thumb. Internal: an error of the device.
  absl::Status Choose(absl::Span<const Matrix* const> matrices, base::Nanos budget);

  // out[row] = matrix x[row]. x: [rows][inputs] of `type`, out: [rows][outputs] float32; sums are
  // float32, without TensorFloat-32. If batch_invariant, a row's bits depend on that row alone: in
  // float32 because cuBLAS always computes kInvariantRows rows at a time.
  absl::Status Multiply(base::DataType type, const Matrix& matrix, const void* x, int32_t rows,
                        float* out) const;
  // The same, and then silu(gate) * up of two products each.
  absl::Status MultiplyGated(base::DataType type, const Matrix& matrix, const void* x, int32_t rows,
                             const GatedOutput& to) const;

 private:
  struct Chosen {
    int32_t outputs = 0, inputs = 0;
    RowClasses<ProductChoice> choices;
  };

  MatrixProducts(const base::cuda::Device* device, bool batch_invariant)
      : device_(device), batch_invariant_(batch_invariant) {}
  absl::Status Start();
  ProductChoice ChoiceFor(const Matrix& matrix, int32_t rows) const;
  absl::Status ChooseFor(const Matrix& matrix, base::Nanos end, ProductTimer* timer,
                         Chosen* chosen) const;
  absl::Status Run(const ProductChoice& choice, const ProductArgs& args) const;
  absl::Status MultiplyByBlas(base::DataType type, const Matrix& matrix, const void* x,
                              int32_t rows, float* out) const;

  const base::cuda::Device* const device_;
  const bool batch_invariant_;
  cublasContext* blas_ = nullptr;
  base::cuda::DeviceBuffer blas_workspace_, sums_, counters_;
  std::vector<Chosen> chosen_;  // one for each shape
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_LINEAR_H_
