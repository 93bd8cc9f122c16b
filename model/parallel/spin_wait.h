#ifndef SPECFABRIC_MODEL_PARALLEL_SPIN_WAIT_H_
#define SPECFABRIC_MODEL_PARALLEL_SPIN_WAIT_H_

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/cpu_relax.h"

namespace specfabric::model {

// Returns once `value` is no longer `old`. Spins for the time that a collective between running
// threads takes, then sleeps: a group may have more threads than the machine has cores. Whoever
// changes `value` must call notify_all on it.
inline void WaitWhileEqual(const std::atomic<uint32_t>& value, uint32_t old) {
  constexpr base::Nanos kSpin = 20 * base::kMicrosecond;
  const base::Nanos deadline = base::Now() + kSpin;
  while (value.load(std::memory_order_acquire) == old) {
    for (int i = 0; i < 16; ++i) base::CpuRelax();
    if (base::Now() < deadline) continue;
    value.wait(old, std::memory_order_acquire);
  }
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARALLEL_SPIN_WAIT_H_
