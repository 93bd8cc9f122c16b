#ifndef SPECFABRIC_BASE_CPU_RELAX_H_
#define SPECFABRIC_BASE_CPU_RELAX_H_

namespace specfabric::base {

// For loops that wait for another core: saves power, and leaves the core to its other hardware
// thread meanwhile.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_CPU_RELAX_H_
