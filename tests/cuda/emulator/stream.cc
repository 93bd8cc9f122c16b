#include "tests/cuda/emulator/stream.h"

#include <cstdlib>
#include <utility>
#include <vector>

using Works = std::vector<std::function<cudaError_t()>>;

// CUDA's handles point to these.
struct CUgraph_st {
  Works works;
};
struct CUgraphExec_st {
  Works works;
};

namespace specfabric::emulator {
namespace {

struct Capture {
  bool on = false, broken = false;
  Works works;
};
thread_local Capture capture;

// Whether a fault is the current GPU's: `on` names it, or is empty for all.
bool IsHere(const char* on) {
  int device = 0;
  cudaGetDevice(&device);
  return *on == 0 || std::atoi(on) == device;
}

}  // namespace

cudaError_t Enqueue(std::function<cudaError_t()> work) {
  if (!capture.on) return work();
  capture.works.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t RefuseInCapture() {
  if (!capture.on) return cudaSuccess;
  capture.broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace specfabric::emulator

using specfabric::emulator::Capture;
using specfabric::emulator::capture;
using specfabric::emulator::IsHere;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) {
  if (capture.on) return cudaErrorIllegalState;
  // A process starts with the former.
  if (const char* on = std::getenv("EMULATED_NO_GRAPHS"); on != nullptr && IsHere(on)) {
    return cudaErrorStreamCaptureUnsupported;
  }
  capture.on = true;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  if (!capture.on) return cudaErrorIllegalState;
  const Capture ended = std::exchange(capture, {});
  *graph = nullptr;
  if (ended.broken) return cudaErrorStreamCaptureInvalidated;
  // Only small graphs, where a test asks for it, as in "3" or, for the second GPU, "3@1".
  if (const char* const most = std::getenv("EMULATED_MOST_GRAPH_NODES"); most != nullptr) {
    char* rest = nullptr;
    const size_t nodes = std::strtoull(most, &rest, 10);
    if (ended.works.size() > nodes && IsHere(*rest == '@' ? rest + 1 : rest)) {
      return cudaErrorMemoryAllocation;
    }
  }
  *graph = new CUgraph_st{ended.works};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *made = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t /*stream*/) {
  if (std::getenv("EMULATED_EMPTY_GRAPHS") != nullptr) return cudaSuccess;  // a launch does nothing
  for (const auto& work : graph->works) {
    if (const cudaError_t error = specfabric::emulator::Enqueue(work); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
