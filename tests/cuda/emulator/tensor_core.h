#ifndef SPECFABRIC_TESTS_CUDA_EMULATOR_TENSOR_CORE_H_
#define SPECFABRIC_TESTS_CUDA_EMULATOR_TENSOR_CORE_H_

// The twins of base/cuda/tensor_core.h. What was copied to shared memory by StartCopy16 is seen
// from AwaitCopies on and not before, so that a kernel which does not wait reads what was there.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/bfloat16.h"
#include "tests/cuda/emulator/emulator.h"

namespace specfabric::base::cuda {

enum class TensorType : uint8_t;

template <TensorType kType>
float WidenHalf(uint32_t word, int half) {
  const auto bits = static_cast<uint16_t>(half == 0 ? word : word >> 16);
  constexpr auto kBFloat16 = static_cast<TensorType>(1);
  if constexpr (kType == kBFloat16) return WidenBFloat16(bits);
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const float size = exponent == 0      ? std::ldexp(static_cast<float>(fraction), -24)
                     : exponent == 0x1f ? (fraction == 0 ? INFINITY : NAN)
                                        : std::ldexp(static_cast<float>(fraction + 0x400),
                                                     exponent - 25);
  return (bits & 0x8000) == 0 ? size : -size;
}

// The products of a sum are added in the order of k.
template <TensorType kType>
void MultiplyAdd(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) {
  struct Operands {
    float a[4][2], b[2][2];
  } mine;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) mine.a[i][half] = WidenHalf<kType>(a[i], half);
    for (int i = 0; i < 2; ++i) mine.b[i][half] = WidenHalf<kType>(b[i], half);
  }
  constexpr unsigned kAll = ~0u;
  const auto& all =
      emulator::ExchangeAll(kAll, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&mine)));
  const auto of = [&](int lane) {
    return reinterpret_cast<const Operands*>(static_cast<uintptr_t>(all[lane]));
  };
  const int g = emulator::Lane() / 4, q = emulator::Lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int upper = i / 2, column = 2 * q + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int holder = k % 8 / 2, high = k / 8;
      d[i] = std::fma(of(4 * g + holder)->a[upper + 2 * high][k % 2],
                      of(4 * column + holder)->b[high][k % 2], d[i]);
    }
  }
  emulator::ExchangeAll(kAll, 0);  // until every lane has read, the operands stay
}

inline uint4 LoadOnce(const void* from) {
  uint4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

inline void StartCopy16(void* to, const void* from, bool valid) {
  emulator::StartCopy16(to, valid ? from : nullptr);
}
inline void CommitCopies() { emulator::CommitCopies(); }
template <int kPending>
void AwaitCopies() {
  emulator::AwaitCopies(kPending);
}

// A kernel has ended when the next one begins.
inline void AwaitInputs() {}
inline void LetNextBegin() {}

inline void* DynamicShared() { return emulator::DynamicShared(); }

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_TESTS_CUDA_EMULATOR_TENSOR_CORE_H_
