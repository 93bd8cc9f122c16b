// What the project calls of CUDA's run-time library and of cuBLAS, for one emulated GPU: at once
// and on the CPU.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "tests/cuda/emulator/stream.h"

using specfabric::emulator::RefuseInCapture;

namespace {

constexpr int kDevices = 4;
thread_local int current_device = 0;

// Memory of the emulated GPUs that is taken. Tests set how much each has (EMULATED_GPU_BYTES), and
// how much of what it reports as free another process takes first (EMULATED_GPU_TAKEN_BYTES).
constexpr size_t kDeviceBytes = size_t{256} << 20;
std::mutex memory_mutex;
size_t taken[kDevices] = {};
std::map<void*, std::pair<int, size_t>> places;  // device, bytes

size_t BytesOf(const char* variable, size_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Two of them make a bfloat16 that is no number, four a float.
constexpr int kPoison = 0xff;

float ValueOf(const void* data, cudaDataType_t type, int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  return specfabric::base::WidenBFloat16(static_cast<const uint16_t*>(data)[at]);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device >= kDevices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(memory_mutex);
  *total = BytesOf("EMULATED_GPU_BYTES", kDeviceBytes);
  *free = *total - std::min(taken[current_device], *total);
  return cudaSuccess;
}
// The compute capability of an H100, with fewer processors.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  constexpr int kMajor = 9, kProcessors = 4;
  const bool asks_major = attribute == cudaDevAttrComputeCapabilityMajor;
  if (!asks_major && attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = asks_major ? kMajor : kProcessors;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "emulated");
  return cudaSuccess;
}
// Whether all reach each other, or none any other; a process starts with the former.
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  *can = device != other && std::getenv("EMULATED_GPUS_APART") == nullptr ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int /*other*/, unsigned /*flags*/) { return cudaSuccess; }
// Of shared memory beyond 48 KiB, which emulator.cc does not ask for.
cudaError_t cudaFuncSetAttribute(const void* /*kernel*/, cudaFuncAttribute /*attribute*/,
                                 int /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t /*stream*/) {
  return specfabric::emulator::Enqueue([=] { return cudaMemset(memory, value, bytes); });
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}
cudaError_t cudaDeviceSynchronize() { return RefuseInCapture(); }

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
  constexpr size_t kAlign = 256;
  if (posix_memalign(memory, kAlign, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*memory, kPoison, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const std::lock_guard lock(memory_mutex);
  const size_t others = BytesOf("EMULATED_GPU_TAKEN_BYTES", 0);
  if (taken[current_device] + bytes + others > BytesOf("EMULATED_GPU_BYTES", kDeviceBytes)) {
    return cudaErrorMemoryAllocation;
  }
  if (const cudaError_t error = cudaMallocHost(memory, bytes); error != cudaSuccess) return error;
  taken[current_device] += bytes;
  places[*memory] = {current_device, bytes};
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return RefuseInCapture();
  const std::lock_guard lock(memory_mutex);
  if (const cudaError_t error = cudaFreeHost(memory); error != cudaSuccess) return error;
  const auto place = places.find(memory);
  if (place == places.end()) return cudaErrorInvalidValue;
  taken[place->second.first] -= place->second.second;
  places.erase(place);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  // A graph would copy what the host's memory holds when it is launched, which nobody here means.
  if (kind != cudaMemcpyDeviceToDevice) return cudaMemcpy(to, from, bytes, kind);
  return specfabric::emulator::Enqueue([=] { return cudaMemcpy(to, from, bytes, kind); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return RefuseInCapture(); }

// Nothing takes any time here, but a division by it has to have a result.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return RefuseInCapture(); }
cudaError_t cudaEventDestroy(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) {
  return RefuseInCapture();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t /*begin*/, cudaEvent_t /*end*/) {
  *ms = 1;
  return cudaSuccess;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t /*handle*/) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t /*handle*/, cublasMath_t /*mode*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t /*handle*/, cudaStream_t /*stream*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t /*handle*/, void* /*workspace*/,
                                     size_t /*bytes*/) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t /*status*/) { return "emulated error"; }

// Column-major: c[m][n] = a'[m][k] b[k][n], the only way it is called.
cublasStatus_t cublasGemmEx(cublasHandle_t /*handle*/, cublasOperation_t of_a,
                            cublasOperation_t of_b, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t /*compute*/,
                            cublasGemmAlgo_t /*algorithm*/) {
  const bool known = of_a == CUBLAS_OP_T && of_b == CUBLAS_OP_N && c_type == CUDA_R_32F &&
                     *static_cast<const float*>(alpha) == 1 &&
                     *static_cast<const float*>(beta) == 0;
  if (!known) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cudaError_t enqueued = specfabric::emulator::Enqueue([=] {
    std::vector<float> row(k);
    for (int i = 0; i < m; ++i) {
      for (int x = 0; x < k; ++x) row[x] = ValueOf(a, a_type, int64_t{i} * lda + x);
      for (int j = 0; j < n; ++j) {
        float sum = 0;
        for (int x = 0; x < k; ++x) sum += row[x] * ValueOf(b, b_type, int64_t{j} * ldb + x);
        static_cast<float*>(c)[int64_t{j} * ldc + i] = sum;
      }
    }
    return cudaSuccess;
  });
  return enqueued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
