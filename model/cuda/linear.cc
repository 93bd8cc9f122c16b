#include "model/cuda/linear.h"

#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/cuda/layers.h"
#include "model/cuda/product_timer.h"
#include "spdlog/spdlog.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::TensorType;

// A fixed size, since the one that cuBLAS chooses, and with it the kernel, may change with other
// allocations. NVIDIA's guide recommends 32 MiB for Hopper.
constexpr size_t kBlasWorkspaceBytes = size_t{32} << 20;
// For a product of 4,096 outputs and 512 rows in four slices.
constexpr size_t kSumsBytes = size_t{32} << 20;

absl::Status BlasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLAS, ", what, ": ", cublasGetStatusString(status)));
}

ProductArgs ArgsOf(const Matrix& matrix, const void* packed, const void* x, int32_t rows,
                   void* out) {
  return {.type = TensorType::kBFloat16,
          .weights = packed,
          .outputs = matrix.outputs,
          .inputs = matrix.inputs,
          .x = x,
          .rows = rows,
          .out = out};
}

size_t PackedBytes(const Matrix& matrix) {
  return static_cast<size_t>(PackedElements(matrix.outputs, matrix.inputs)) * sizeof(uint16_t);
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
  status.Update(blas_workspace_.Reserve(kBlasWorkspaceBytes));
  status.Update(sums_.Reserve(kSumsBytes));
  status.Update(counters_.Reserve(kProductCounters * sizeof(uint32_t)));
  if (!status.ok()) return status;
  status.Update(device_->Clear(counters_.As<void>(), counters_.bytes()));
  status.Update(PrepareProducts());
  // Partial sums of a product in bfloat16 would have other bits than float32's.
  status.Update(BlasStatus(
      cublasSetMathMode(
          blas_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                           CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
      "its precision"));
  status.Update(BlasStatus(cublasSetStream(blas_, device_->stream()), "its stream"));
  status.Update(BlasStatus(
      cublasSetWorkspace(blas_, blas_workspace_.As<void>(), kBlasWorkspaceBytes), "its workspace"));
  return status;
}

MatrixProducts::~MatrixProducts() {
  if (blas_ != nullptr && device_->MakeCurrent().ok()) cublasDestroy(blas_);
}

const MatrixProducts::Chosen* MatrixProducts::Find(const Matrix& matrix) const {
  for (const Chosen& chosen : chosen_) {
    if (chosen.outputs == matrix.outputs && chosen.inputs == matrix.inputs) return &chosen;
  }
  return nullptr;
}

absl::Status MatrixProducts::Prepare(absl::Span<const Matrix* const> matrices, base::Nanos budget) {
  absl::StatusOr<ProductTimer> timer = ProductTimer::Create(device_);
  if (!timer.ok()) return timer.status();
  size_t largest = 0;
  for (const Matrix* matrix : matrices) largest = std::max(largest, PackedBytes(*matrix));
  DeviceBuffer scratch;
  if (absl::Status status = scratch.Reserve(largest); !status.ok()) return status;
  const base::Nanos end = base::Now() + budget;
  for (const Matrix* matrix : matrices) {
    if (matrix->weights->packed) continue;
    if (Find(*matrix) == nullptr) {
      absl::StatusOr<Chosen> chosen = ChooseFor(*matrix, scratch.As<void>(), end, &*timer);
      if (!chosen.ok()) return chosen.status();
      chosen_.push_back(*std::move(chosen));
    }
    if (!Find(*matrix)->packs) continue;
    if (absl::Status status = Pack(*matrix, scratch.As<void>()); !status.ok()) return status;
  }
  return device_->Finish();
}

absl::Status MatrixProducts::Pack(const Matrix& matrix, void* scratch) const {
  void* const memory = matrix.weights->memory.As<void>();
  const size_t plain = size_t(matrix.outputs) * matrix.inputs * sizeof(uint16_t);
  absl::Status status = device_->Copy(memory, plain, scratch);
  status.Update(EnqueuePack(scratch, matrix.outputs, matrix.inputs, memory, device_->stream()));
  matrix.weights->packed = status.ok();
  return status;
}

absl::StatusOr<MatrixProducts::Chosen> MatrixProducts::ChooseFor(const Matrix& matrix,
                                                                 void* scratch, base::Nanos end,
                                                                 ProductTimer* timer) const {
  Chosen chosen = {.outputs = matrix.outputs, .inputs = matrix.inputs, .kernels = {}};
  for (size_t i = 0; i < kRowClasses.size(); ++i) {
    chosen.kernels[i] = RuleOfThumb(kRowClasses[i], matrix.inputs);
  }
  if (base::Now() >= end) return chosen;
  absl::Status status = EnqueuePack(matrix.weights->memory.As<void>(), matrix.outputs,
                                    matrix.inputs, scratch, device_->stream());
  if (status.ok()) status = ChooseKernels(matrix, scratch, end, timer, &chosen);
  if (!status.ok()) return status;
  if (!batch_invariant_) {
    const absl::StatusOr<bool> blas = BlasIsFaster(matrix, chosen, end, timer);
    if (!blas.ok()) return blas.status();
    chosen.packs = !*blas;
  }
  std::string log;
  for (size_t i = 0; i < kRowClasses.size() && chosen.microseconds[i] > 0; ++i) {
    absl::StrAppend(&log, log.empty() ? "" : ", ", kRowClasses[i], ": ", Name(chosen.kernels[i]),
                    " ", std::lround(chosen.microseconds[i]), " us");
  }
  spdlog::info("model: GPU {} of {}: products of {} x {} by rows: {}{}", device_->ordinal(),
               device_->name(), matrix.outputs, matrix.inputs, log,
               chosen.packs ? "" : "; cuBLAS is faster and taken");
  return chosen;
}

// Tries the classes of rows until the time has passed; those that there is no memory for keep what
// they have.
absl::Status MatrixProducts::ChooseKernels(const Matrix& matrix, const void* packed,
                                           base::Nanos end, ProductTimer* timer,
                                           Chosen* chosen) const {
  for (size_t i = 0; i < kRowClasses.size() && base::Now() < end; ++i) {
    const int32_t rows = kRowClasses[i];
    const absl::Status room = timer->Prepare(ArgsOf(matrix, packed, nullptr, rows, nullptr));
    if (absl::IsResourceExhausted(room)) break;
    if (!room.ok()) return room;
    const auto run_by = [&](ProductKernel kernel) {
      return [this, kernel](const ProductArgs& args) { return Run(kernel, args); };
    };
    const absl::StatusOr<ProductWinner> winner = FastestOf(
        CandidatesFor(rows, matrix.inputs),
        {.same = [&](ProductKernel kernel) { return timer->Same(run_by(kernel)); },
         .microseconds = [&](ProductKernel kernel) { return timer->Time(run_by(kernel)); }});
    if (!winner.ok()) return winner.status();
    for (const ProductKernel wrong : winner->wrong) {
      spdlog::error(
          "model: GPU {} of {}: the product {} of {} rows by {} x {} has other bits than "
          "{}; it is not used",
          device_->ordinal(), device_->name(), Name(wrong), rows, matrix.outputs, matrix.inputs,
          Name(RuleOfThumb(rows, matrix.inputs)));
    }
    chosen->kernels[i] = winner->kernel;
    chosen->microseconds[i] = winner->microseconds;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MatrixProducts::BlasIsFaster(const Matrix& matrix, const Chosen& chosen,
                                                  base::Nanos end, ProductTimer* timer) const {
  double logarithms = 0;
  for (size_t i = 0; i < kRowClasses.size() && base::Now() < end; ++i) {
    if (chosen.microseconds[i] <= 0) break;
    absl::Status room = timer->Prepare(ArgsOf(matrix, nullptr, nullptr, kRowClasses[i], nullptr));
    if (!room.ok()) return room;
    const absl::StatusOr<float> took = timer->Time([&](const ProductArgs& args) {
      return MultiplyByBlas(base::DataType::kBFloat16, matrix, args.x, args.rows,
                            static_cast<float*>(args.out));
    });
    if (!took.ok()) return took.status();
    logarithms += std::log(*took / chosen.microseconds[i]);
  }
  return logarithms < 0;
}

ProductKernel MatrixProducts::KernelFor(const Matrix& matrix, int32_t rows) const {
  const Chosen* const chosen = Find(matrix);
  return chosen != nullptr ? chosen->kernels[RowClassOf(rows)] : RuleOfThumb(rows, matrix.inputs);
}

absl::Status MatrixProducts::Run(ProductKernel kernel, const ProductArgs& args) const {
  const ProductWorkspace workspace = {.sums = sums_.As<float>(),
                                      .floats = kSumsBytes / sizeof(float),
                                      .counters = counters_.As<uint32_t>()};
  return EnqueueProduct(kernel, args, workspace, device_->stream());
}

absl::Status MatrixProducts::Multiply(base::DataType type, const Matrix& matrix, const void* x,
                                      int32_t rows, float* out) const {
  if (!matrix.weights->packed) return MultiplyByBlas(type, matrix, x, rows, out);
  return Run(KernelFor(matrix, rows),
             ArgsOf(matrix, matrix.weights->memory.As<void>(), x, rows, out));
}

absl::Status MatrixProducts::MultiplyGated(base::DataType type, const Matrix& matrix, const void* x,
                                           int32_t rows, const GatedOutput& to) const {
  if (!matrix.weights->packed) {
    absl::Status status = MultiplyByBlas(type, matrix, x, rows, to.products);
    if (!status.ok()) return status;
    return EnqueueGate({.type = type,
                        .rows = rows,
                        .features = to.features,
                        .gate_up = to.products,
                        .bias = to.bias,
                        .out = to.out},
                       device_->stream());
  }
  ProductArgs args = ArgsOf(matrix, matrix.weights->memory.As<void>(), x, rows, to.out);
  args.result = ProductResult::kGated;
  args.features = to.features;
  args.bias = to.bias;
  return Run(KernelFor(matrix, rows), args);
}

absl::Status MatrixProducts::MultiplyByBlas(base::DataType type, const Matrix& matrix,
                                            const void* x, int32_t rows, float* out) const {
  const bool is_float = type == base::DataType::kFloat32;
  const cudaDataType_t data = is_float ? CUDA_R_32F : CUDA_R_16BF;
  const size_t x_bytes = size_t(matrix.inputs) * (is_float ? sizeof(float) : sizeof(uint16_t));
  const int32_t step = batch_invariant_ ? kInvariantRows : rows;
  const float one = 1, zero = 0;
  for (int32_t row = 0; row < rows; row += step) {
    // cuBLAS counts by columns: there it is out' = matrix' x', of [inputs][rows].
    const cublasStatus_t status = cublasGemmEx(
        blas_, CUBLAS_OP_T, CUBLAS_OP_N, matrix.outputs, step, matrix.inputs, &one,
        matrix.weights->memory.As<void>(), data, matrix.inputs,
        static_cast<const std::byte*>(x) + row * x_bytes, data, matrix.inputs, &zero,
        out + size_t(row) * matrix.outputs, CUDA_R_32F, matrix.outputs,
        is_float ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) return BlasStatus(status, "a matrix product");
  }
  return absl::OkStatus();
}

}  // namespace specfabric::model::cuda
