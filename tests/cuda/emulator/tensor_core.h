#ifndef SPECFABRIC_TESTS_CUDA_EMULATOR_TENSOR_CORE_H_
#define SPECFABRIC_TESTS_CUDA_EMULATOR_TENSOR_CORE_H_

// Substitutes for base/cuda/tensor_core.h. What was copied to shared memory by StartCopy16 is seen
// from AwaitCopies on and not before, so that a kernel which does not wait reads what was there.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/bfloat16.h"
#include "base/cuda/tensor_type.h"
#include "tests/cuda/emulator/emulator.h"

namespace specfabric::emulator {

// What a lane holds of a tensor core's operands (base/cuda/tensor_core.h).
struct Operands {
  float a[4][2], b[2][2];
};
// Adds a lane's products, in the order of k, to its four sums. operands[lane] points to the lane's.
// tensor_core.cc, which is optimised: this is most of what emulated kernels do.
void AddProducts(const std::array<uint64_t, 32>& operands, int lane, float* sums);

}  // namespace specfabric::emulator

namespace specfabric::base::cuda {

template <TensorType kType>
float WidenHalf(uint32_t word, int half) {
  const auto bits = static_cast<uint16_t>(half == 0 ? word : word >> 16);
  if constexpr (kType == TensorType::kBFloat16) return WidenBFloat16(bits);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

template <TensorType kType>
uint16_t RoundTo(float value) {
  if constexpr (kType == TensorType::kBFloat16) return RoundToBFloat16(value);
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

template <TensorType kType>
void MultiplyAdd(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) {
  emulator::Operands mine;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) mine.a[i][half] = WidenHalf<kType>(a[i], half);
    for (int i = 0; i < 2; ++i) mine.b[i][half] = WidenHalf<kType>(b[i], half);
  }
  constexpr unsigned kAll = ~0u;
  const auto& all =
      emulator::ExchangeAll(kAll, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&mine)));
  emulator::AddProducts(all, emulator::Lane(), d);
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
