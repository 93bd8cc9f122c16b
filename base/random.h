#ifndef SPECFABRIC_BASE_RANDOM_H_
#define SPECFABRIC_BASE_RANDOM_H_

// Bits from the operating system, for what must differ between processes and restarts
// (incarnations, seeds that nobody gave). Everything reproducible uses sampling/philox.h.

#include <cstdint>
#include <random>

namespace specfabric::base {

inline uint64_t RandomNonzero64() {
  std::random_device device;
  for (;;) {
    const uint64_t bits = (uint64_t{device()} << 32) | device();
    if (bits != 0) return bits;
  }
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_RANDOM_H_
