#ifndef SPECFABRIC_MODEL_CUDA_LINEAR_H_
#define SPECFABRIC_MODEL_CUDA_LINEAR_H_

// Linear layers on the device: cuBLAS's matrix products.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/data_type.h"

struct cublasContext;

namespace specfabric::model::cuda {

// Outputs of a linear layer on the device: [outputs][inputs].
struct Matrix {
  int32_t outputs = 0, inputs = 0;
  std::shared_ptr<base::cuda::DeviceBuffer> weights;  // shared where an embedding is also the head
};

// Rows that a batch-invariant matrix product computes at once. Buffers that it reads or writes have
// room for a multiple of so many rows.
constexpr int32_t kInvariantRows = 64;
constexpr int32_t PaddedRows(int32_t rows) {
  return (rows + kInvariantRows - 1) / kInvariantRows * kInvariantRows;
}

// The matrix products of one device, on its stream; used by its thread.
class MatrixProducts {
 public:
  // The device must outlive it.
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(const base::cuda::Device* device,
                                                                bool batch_invariant);
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // out[row] = matrix x[row]. x: [rows][inputs] of `type`, out: [rows][outputs] float32; sums are
  // float32, without TensorFloat-32. Batch-invariant products always compute kInvariantRows rows at
  // a time, with one kernel, so that a row's bits do not depend on the others. They read the
  // weights once for so many rows, and compute padding rows up to the multiple.
  absl::Status Multiply(base::DataType type, const Matrix& matrix, const void* x, int32_t rows,
                        float* out) const;

 private:
  MatrixProducts(const base::cuda::Device* device, bool batch_invariant)
      : device_(device), batch_invariant_(batch_invariant) {}
  absl::Status Start();

  const base::cuda::Device* const device_;
  const bool batch_invariant_;
  cublasContext* blas_ = nullptr;
  base::cuda::DeviceBuffer workspace_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_LINEAR_H_
