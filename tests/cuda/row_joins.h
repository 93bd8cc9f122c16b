#ifndef SPECFABRIC_TESTS_CUDA_ROW_JOINS_H_
#define SPECFABRIC_TESTS_CUDA_ROW_JOINS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/cuda/device.h"
#include "verification/cuda/row_join.h"

namespace specfabric::verification::cuda {

// The zeros that kernels which share rows find and leave.
class RowJoins {
 public:
  RowJoins(int32_t rows, int32_t vocabulary)
      : bytes_(std::vector<uint8_t>(RowJoinBytes(rows, vocabulary), 0)) {}
  template <typename T = void>
  T* As() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  bool AreZeros() const {
    const std::vector<uint8_t> left = bytes_.Read();
    return std::all_of(left.begin(), left.end(), [](uint8_t byte) { return byte == 0; });
  }

 private:
  base::cuda::DeviceArray<uint8_t> bytes_;
};

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_TESTS_CUDA_ROW_JOINS_H_
