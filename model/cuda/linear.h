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

// Weights on the device: [outputs][inputs], or in the order of product.h's PackedIndex. Memory of
// 16-bit weights has room for both.
struct MatrixWeights {
  base::cuda::DeviceBuffer memory;
  bool packed = false;
};
struct Matrix {
  int32_t outputs = 0, inputs = 0;
  std::shared_ptr<MatrixWeights> weights;  // shared where an embedding is also the head
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

  // Packs matrices of bfloat16, and tries the kernels on the first of each shape: the fastest is
  // kept for each class of row counts, with a line in the log for each shape. Begins no trial once
  // `budget` has passed; what was not tried, for want of time or of memory for 512 rows, keeps the
  // rule of thumb. Where a row's bits may depend on other rows and cuBLAS is faster, matrices of
  // that shape are not packed, and are cuBLAS's. ResourceExhausted: there is no memory for another
  // copy of the largest matrix. Internal: an error of the device.
  absl::Status Prepare(absl::Span<const Matrix* const> matrices, base::Nanos budget);

  // out[row] = matrix x[row], by cuBLAS unless the matrix is packed. x: [rows][inputs] of `type`,
  // out: [rows][outputs] float32; sums are float32, without TensorFloat-32. If batch_invariant, a
  // row's bits depend on that row alone: in float32 because cuBLAS always computes kInvariantRows
  // rows at a time.
  absl::Status Multiply(base::DataType type, const Matrix& matrix, const void* x, int32_t rows,
                        float* out) const;
  // The same, and then silu(gate) * up of two products each.
  absl::Status MultiplyGated(base::DataType type, const Matrix& matrix, const void* x, int32_t rows,
                             const GatedOutput& to) const;

 private:
  // Of a shape.
  struct Chosen {
    int32_t outputs = 0, inputs = 0;
    RowClasses<ProductKernel> kernels;
    RowClasses<float> microseconds = {};  // 0: not tried
    bool packs = true;
  };

  MatrixProducts(const base::cuda::Device* device, bool batch_invariant)
      : device_(device), batch_invariant_(batch_invariant) {}
  absl::Status Start();
  const Chosen* Find(const Matrix& matrix) const;
  ProductKernel KernelFor(const Matrix& matrix, int32_t rows) const;
  // scratch: room for the matrix packed.
  absl::StatusOr<Chosen> ChooseFor(const Matrix& matrix, void* scratch, base::Nanos end,
                                   ProductTimer* timer) const;
  absl::Status ChooseKernels(const Matrix& matrix, const void* packed, base::Nanos end,
                             ProductTimer* timer, Chosen* chosen) const;
  // Whether cuBLAS is faster, as the mean of the logarithms over what was tried says.
  absl::StatusOr<bool> BlasIsFaster(const Matrix& matrix, const Chosen& chosen, base::Nanos end,
                                    ProductTimer* timer) const;
  absl::Status Pack(const Matrix& matrix, void* scratch) const;
  absl::Status Run(ProductKernel kernel, const ProductArgs& args) const;
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
