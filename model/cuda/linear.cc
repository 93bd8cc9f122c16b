#include "model/cuda/linear.h"

#include <cublas_v2.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;

// A fixed size, since the one that cuBLAS chooses, and with it the kernel, may change with other
// allocations. NVIDIA's guide recommends 32 MiB for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

absl::Status BlasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLAS, ", what, ": ", cublasGetStatusString(status)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Create(
    const base::cuda::Device* device, bool batch_invariant) {
  std::unique_ptr<MatrixProducts> products(new MatrixProducts(device, batch_invariant));
  if (absl::Status status = products->Start(); !status.ok()) return status;
  return products;
}

absl::Status MatrixProducts::Start() {
  absl::Status status = device_->MakeCurrent();
  if (!status.ok()) return status;
  if (status = BlasStatus(cublasCreate(&blas_), "a handle"); !status.ok()) return status;
  absl::StatusOr<DeviceBuffer> workspace = DeviceBuffer::Create(kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  workspace_ = *std::move(workspace);
  // Partial sums of a product in bfloat16 would have other bits than float32's.
  status.Update(BlasStatus(
      cublasSetMathMode(
          blas_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                           CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
      "its precision"));
  status.Update(BlasStatus(cublasSetStream(blas_, device_->stream()), "its stream"));
  status.Update(BlasStatus(cublasSetWorkspace(blas_, workspace_.As<void>(), kWorkspaceBytes),
                           "its workspace"));
  return status;
}

MatrixProducts::~MatrixProducts() {
  if (blas_ != nullptr && device_->MakeCurrent().ok()) cublasDestroy(blas_);
}

absl::Status MatrixProducts::Multiply(base::DataType type, const Matrix& matrix, const void* x,
                                      int32_t rows, float* out) const {
  const bool is_float = type == base::DataType::kFloat32;
  const cudaDataType_t data = is_float ? CUDA_R_32F : CUDA_R_16BF;
  const size_t x_bytes = size_t(matrix.inputs) * (is_float ? sizeof(float) : sizeof(uint16_t));
  const int32_t step = batch_invariant_ ? kInvariantRows : rows;
  const float one = 1, zero = 0;
  for (int32_t row = 0; row < rows; row += step) {
    // cuBLAS counts by columns: there it is out' = matrix' x', of [inputs][rows].
    const cublasStatus_t status = cublasGemmEx(
        blas_, CUBLAS_OP_T, CUBLAS_OP_N, matrix.outputs, step, matrix.inputs, &one,
        matrix.weights->As<void>(), data, matrix.inputs,
        static_cast<const std::byte*>(x) + row * x_bytes, data, matrix.inputs, &zero,
        out + size_t(row) * matrix.outputs, CUDA_R_32F, matrix.outputs,
        is_float ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) return BlasStatus(status, "a matrix product");
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model::cuda
