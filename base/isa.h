#ifndef SPECFABRIC_BASE_ISA_H_
#define SPECFABRIC_BASE_ISA_H_

// Which vector instructions a hot loop may use. A loop is written once, as a function with
// SPECFABRIC_ALWAYS_INLINE, and inlined into one function for each instruction set, where the
// compiler vectorises it. Such loops use only +, *, std::fma and integers, element by element, so
// that every variant gives the same bits.

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#define SPECFABRIC_TARGET_AVX2 __attribute__((target("avx2,fma")))
// GCC otherwise keeps to 256 bits on some processors; clang has no such attribute.
#ifdef __clang__
#define SPECFABRIC_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#else
#define SPECFABRIC_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")))
#endif
#else
#define SPECFABRIC_TARGET_AVX2
#define SPECFABRIC_TARGET_AVX512
#endif
#define SPECFABRIC_ALWAYS_INLINE inline __attribute__((always_inline))
// Of functions that CUDA kernels call as well.
#ifdef __CUDACC__
#define SPECFABRIC_HOST_DEVICE __host__ __device__
#else
#define SPECFABRIC_HOST_DEVICE
#endif

namespace specfabric::base {

// Asks memory for the line `bytes` further on, which may lie beyond the array: then it does
// nothing. For loops over rows that are not in any cache: processors prefetch on their own only to
// the end of a page, and not while they compute on what they have.
SPECFABRIC_ALWAYS_INLINE void PrefetchAhead(const void* place, size_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(place) + bytes));
}

enum class Isa { kPortable, kAvx2, kAvx512 };

namespace isa_internal {
inline bool Has(Isa isa) {
#if defined(__x86_64__) && defined(__GNUC__)
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return isa == Isa::kPortable;
}
}  // namespace isa_internal

// Whether this machine can run a variant; asked of the processor once.
inline bool Supported(Isa isa) {
  static const std::array<bool, 3> supported = {isa_internal::Has(Isa::kPortable),
                                                isa_internal::Has(Isa::kAvx2),
                                                isa_internal::Has(Isa::kAvx512)};
  return supported[static_cast<int>(isa)];
}

inline Isa BestIsa() {
  static const Isa best = Supported(Isa::kAvx512) ? Isa::kAvx512
                          : Supported(Isa::kAvx2) ? Isa::kAvx2
                                                  : Isa::kPortable;
  return best;
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_ISA_H_
