#include "model/cuda/device.h"

#include <cublas_v2.h>

#include <utility>

#include "model/cuda/error.h"

namespace specfabric::model::cuda {
namespace {

// Of one size always: what cuBLAS would choose by itself may change with what else is allocated,
// and with it the kernel. NVIDIA's guide recommends 32 MiB for Hopper.
constexpr size_t kBlasWorkspace = size_t{32} << 20;

absl::Status BlasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLAS, ", what, ": ", cublasGetStatusString(status)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int32_t ordinal, bool batch_invariant) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || ordinal >= devices) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", ordinal, " is asked for, and this process sees ", devices,
        error != cudaSuccess ? absl::StrCat(" (", cudaGetErrorString(error), ")") : ""));
  }
  std::unique_ptr<Device> device(new Device(ordinal, batch_invariant));
  if (absl::Status status = device->Start(); !status.ok()) return status;
  return device;
}

absl::Status Device::Start() {
  if (absl::Status current = MakeCurrent(); !current.ok()) return current;
  cudaDeviceProp properties = {};
  absl::Status status =
      ToStatus(cudaGetDeviceProperties(&properties, ordinal_), "properties of the device");
  name_ = absl::StrCat(properties.name, " sm_", properties.major, properties.minor);
  status.Update(ToStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"));
  status.Update(BlasStatus(cublasCreate(&blas_), "a handle"));
  if (!status.ok()) return status;
  absl::StatusOr<DeviceBuffer> workspace = DeviceBuffer::Create(kBlasWorkspace);
  if (!workspace.ok()) return workspace.status();
  blas_workspace_ = *std::move(workspace);
  // Sums of parts of a product in bfloat16 would be others than float32's.
  status.Update(BlasStatus(
      cublasSetMathMode(
          blas_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                           CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
      "its precision"));
  status.Update(BlasStatus(cublasSetStream(blas_, stream_), "its stream"));
  status.Update(BlasStatus(cublasSetWorkspace(blas_, blas_workspace_.As<void>(), kBlasWorkspace),
                           "its workspace"));
  return status;
}

Device::~Device() {
  if (!MakeCurrent().ok()) return;
  if (blas_ != nullptr) cublasDestroy(blas_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Device::MakeCurrent() const {
  return ToStatus(cudaSetDevice(ordinal_), "choice of the device");
}

absl::Status Device::Finish() const {
  return ToStatus(cudaStreamSynchronize(stream_), "what was enqueued");
}

absl::Status Device::ToDevice(const void* host, size_t bytes, void* device) const {
  return ToStatus(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_),
                  "a copy to the device");
}

absl::Status Device::ToHost(const void* device, size_t bytes, void* host) const {
  return ToStatus(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
                  "a copy to the host");
}

absl::Status Device::Copy(const void* from, size_t bytes, void* to) const {
  return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
                  "a copy on the device");
}

absl::Status Device::Clear(void* memory, size_t bytes) const {
  return ToStatus(cudaMemsetAsync(memory, 0, bytes, stream_), "zeros");
}

absl::Status Device::Multiply(DataType type, const Matrix& matrix, const void* x, int32_t rows,
                              float* out) const {
  const bool is_float = type == DataType::kFloat32;
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
