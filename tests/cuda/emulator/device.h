#ifndef SPECFABRIC_TESTS_CUDA_EMULATOR_DEVICE_H_
#define SPECFABRIC_TESTS_CUDA_EMULATOR_DEVICE_H_

// Included ahead of a .cu file, this lets a C++ compiler take it: its kernels then run on the CPU,
// one fiber a thread of the device, as emulator.h says. For tests, which so see every thread of a
// kernel under the sanitizers on machines without a GPU. No more of CUDA is here than the project's
// kernels use.

#define SPECFABRIC_EMULATED_GPU  // tensor_core.h here has what base/cuda/tensor_core.h then lacks
#define __shared__ static thread_local  // a thread of the process runs one block at a time

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/stream.h"
#include "tests/cuda/emulator/tensor_core.h"

inline void __syncthreads() { specfabric::emulator::SyncBlock(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { specfabric::emulator::Exchange(mask, 0, 0); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = specfabric::emulator::Exchange(mask, bits, lane & 31);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, specfabric::emulator::Lane() ^ lanes);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
  const int lane = specfabric::emulator::Lane();
  return __shfl_sync(mask, value, lane + distance < 32 ? lane + distance : lane);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int lane = specfabric::emulator::Lane();
  return __shfl_sync(mask, value, lane >= distance ? lane - distance : lane);
}

// Over the lanes in `mask`.
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  const auto& all = specfabric::emulator::ExchangeAll(mask, value);
  unsigned largest = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const auto given = static_cast<unsigned>(all[lane]);
    if ((mask >> lane & 1) != 0 && given > largest) largest = given;
  }
  return largest;
}

inline unsigned __ballot_sync(unsigned mask, bool yes) {
  const auto& all = specfabric::emulator::ExchangeAll(mask, yes ? 1 : 0);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0) votes |= static_cast<unsigned>(all[lane]) << lane;
  }
  return votes;
}

inline unsigned atomicAdd(unsigned* place, unsigned value) {
  const unsigned old = *place;
  *place += value;
  return old;
}

inline unsigned long long atomicMax(unsigned long long* place, unsigned long long value) {
  const unsigned long long old = *place;
  if (value > old) *place = value;
  return old;
}

inline unsigned long long atomicAdd(unsigned long long* place, unsigned long long value) {
  const unsigned long long old = *place;
  *place += value;
  return old;
}

inline unsigned long long atomicOr(unsigned long long* place, unsigned long long bits) {
  const unsigned long long old = *place;
  *place |= bits;
  return old;
}

// Other GPUs are other threads of the process.
#define __NV_ATOMIC_ACQUIRE 0
#define __NV_ATOMIC_RELEASE 1
#define __NV_ATOMIC_RELAXED 2
#define __NV_THREAD_SCOPE_SYSTEM 0
#define __NV_THREAD_SCOPE_DEVICE 1
template <typename T>
T __nv_atomic_load_n(T* place, int /*acquire*/, int /*scope*/) {
  return std::atomic_ref<T>(*place).load(std::memory_order_acquire);
}
template <typename T>
void __nv_atomic_store_n(T* place, T value, int /*release*/, int /*scope*/) {
  std::atomic_ref<T>(*place).store(value, std::memory_order_release);
}
inline void __threadfence() {}  // blocks run one after the other
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __nanosleep(unsigned /*nanoseconds*/) { std::this_thread::yield(); }

inline int __clzll(long long value) {
  return std::countl_zero(static_cast<unsigned long long>(value));
}
inline int __ffsll(long long value) {
  return std::countr_zero(uint64_t(value)) % 64 + (value != 0);
}
inline int __ffs(int value) { return std::countr_zero(unsigned(value)) % 32 + (value != 0); }
template <typename T>
T __ldcg(const T* place) {
  return *place;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}

#undef __launch_bounds__  // a compiler for the CPU does not know the attribute
#define __launch_bounds__(...)

// As nvcc's <<<>>> and cudaLaunchKernelEx do, but at once: the kernel has ended on return, if it is
// not captured.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  return specfabric::emulator::Enqueue([=, config = *config] {
    return specfabric::emulator::Run(config, [&] { kernel(arguments...); });
  });
}

#endif  // SPECFABRIC_TESTS_CUDA_EMULATOR_DEVICE_H_
