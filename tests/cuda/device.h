#ifndef SPECFABRIC_TESTS_CUDA_DEVICE_H_
#define SPECFABRIC_TESTS_CUDA_DEVICE_H_

// Memory and streams of the first GPU, for tests. Errors end the process.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace specfabric::base::cuda {

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

// An array on the device.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    Check(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~DeviceArray() { cudaFree(data_); }

  T* data() { return data_; }
  // Waits for everything that was enqueued.
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    Check(cudaDeviceSynchronize(), "a kernel");
    Check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

inline int Devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

inline bool Emulated() {
  cudaDeviceProp properties = {};
  return Devices() > 0 && cudaGetDeviceProperties(&properties, 0) == cudaSuccess &&
         std::string_view(properties.name) == "emulated";
}

// Skips its tests if there is no GPU.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Devices() == 0) GTEST_SKIP() << "no GPU here";
  }
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_TESTS_CUDA_DEVICE_H_
