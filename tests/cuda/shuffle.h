#ifndef SPECFABRIC_TESTS_CUDA_SHUFFLE_H_
#define SPECFABRIC_TESTS_CUDA_SHUFFLE_H_

#include <cstdint>

namespace specfabric::emulator {

// Of emulator.h, in the builds that have it.
__attribute__((weak)) void Shuffle(uint64_t seed);

}  // namespace specfabric::emulator

namespace specfabric::base::cuda {

// Emulated kernels run their threads in another order from now on; a GPU's order is its own.
inline void ShuffleThreads(uint64_t seed) {
  if (emulator::Shuffle != nullptr) emulator::Shuffle(seed);
}

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_TESTS_CUDA_SHUFFLE_H_
