#ifndef SPECFABRIC_BASE_CPU_RELAX_H_
#define SPECFABRIC_BASE_CPU_RELAX_H_

namespace specfabric::base {

// For loops that wait for another core: a short pause, in which the loop does not load the memory
// it waits for, and in which the core's other hardware thread, if it has one, runs alone.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // Not "yield": without hardware threads (NVIDIA's Grace, for one) it takes no time at all, and
  // the loops here count their rounds. This takes about as long as x86's pause.
  asm volatile("isb" : : : "memory");
#endif
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_CPU_RELAX_H_
