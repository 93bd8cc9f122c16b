#ifndef SPECFABRIC_BENCH_SCHEDULER_MODELLED_H200_H_
#define SPECFABRIC_BENCH_SCHEDULER_MODELLED_H200_H_

// What passes of an 8B target and of its drafters take on one H200, for simulations: Llama shapes
// in bfloat16, measured (docs/benchmarks.md, One GPU), and of drafters that have not run on a GPU
// yet by the bytes that they read.

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "scheduler/simulation/drafter_kind.h"
#include "scheduler/simulation/step_cost.h"

namespace specfabric::scheduler {

constexpr int32_t kLayers8B = 32, kHidden8B = 4096;
constexpr double kWeights8B = 16.06e9;     // bytes
constexpr double kKvToken8B = 128 * 1024;  // bytes
constexpr double kMemory = 0.9 * 141e9;    // as --gpu_memory_fraction takes it by default

struct MeasuredDrafter {
  DrafterKind kind;
  std::vector<PassTime> passes;
  int32_t state_layers;      // of the target, that it reads
  double weights, kv_token;  // bytes
};

// Of hidden states: the first byte of GPU memory reached another process after 155 us on one card,
// the rest at 1.6 TB/s (docs/benchmarks.md, One GPU). Between machines the limit of a 400 Gb/s
// wire, and the same latency, though a few microseconds are published for GPUs over RDMA.
constexpr base::Nanos kStateLatency = 155 * base::kMicrosecond;
constexpr double kStateBytesPerSecond = 50e9;

StepCost StepOf8B();
// The numbers of a flag, separated by commas. Others end the program with a line that says what is
// allowed.
std::vector<double> Numbers(const char* flag, const std::string& text, double least, double most);

// block_layers: of the block drafter.
std::vector<MeasuredDrafter> MeasuredDrafters(int32_t block_layers);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_BENCH_SCHEDULER_MODELLED_H200_H_
