#ifndef SPECFABRIC_TESTS_CUDA_EMULATOR_EMULATOR_H_
#define SPECFABRIC_TESTS_CUDA_EMULATOR_EMULATOR_H_

// Runs kernels on the CPU. The blocks of a grid run one after the other, or with
// EMULATED_BLOCKS_REVERSED in the environment the last first; the threads of a block are
// fibers, which run in a shuffled order from one barrier to the next, so that a result that depends
// on the order shows as one that changes with the seed. A barrier that not all threads reach ends
// the process and says so. The runtime library, which runtime.cc supplies, does all at once,
// whatever the stream, if it is not captured (stream.h), and fills new memory with bytes that make
// NaNs.
//
// Threads of the process may launch at the same time, each as if on a GPU of its own: kernels of
// different ones may wait for each other.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>

// Of the thread of the device that runs now.
extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

namespace specfabric::emulator {

int Lane();

// Of all threads of the block that have not ended.
void SyncBlock();
// Gives `bits` to the lanes of the warp in `mask`, all of which must come, and returns those that
// `lane` gave.
uint64_t Exchange(unsigned mask, uint64_t bits, int lane);
// The same, returning what each lane gave, for lanes in `mask`; it stays until the calling lane's
// next exchange but one.
const std::array<uint64_t, 32>& ExchangeAll(unsigned mask, uint64_t bits);

// The shared memory whose size the launch said; of a block, filled with bytes that make NaNs.
void* DynamicShared();
// Copies of the calling thread to shared memory, in groups; null copies zeros.
void StartCopy16(void* to, const void* from);
void CommitCopies();
void AwaitCopies(int pending);

// The order of a kernel's threads follows from it, in all kernels that the calling thread launches.
void Shuffle(uint64_t seed);

cudaError_t Run(const cudaLaunchConfig_t& config, const std::function<void()>& kernel);

}  // namespace specfabric::emulator

#endif  // SPECFABRIC_TESTS_CUDA_EMULATOR_EMULATOR_H_
