#include "tests/cuda/emulator/tensor_core.h"

#include <cmath>

namespace specfabric::emulator {

void AddProducts(const std::array<uint64_t, 32>& operands, int lane, float* sums) {
  const auto of = [&](int holder) {
    return reinterpret_cast<const Operands*>(static_cast<uintptr_t>(operands[holder]));
  };
  const int g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int upper = i / 2, column = 2 * q + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int holder = k % 8 / 2, high = k / 8;
      sums[i] = std::fma(of(4 * g + holder)->a[upper + 2 * high][k % 2],
                         of(4 * column + holder)->b[high][k % 2], sums[i]);
    }
  }
}

}  // namespace specfabric::emulator
