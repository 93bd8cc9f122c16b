#include "model/cuda/graph_cache.h"

#include <algorithm>

#include "base/cuda/error.h"

namespace specfabric::model::cuda {

using base::cuda::Device;
using base::cuda::ToStatus;

void DestroyGraph::operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }

absl::Status GraphCache::Run(const Device& device, const PassSize& size, uint64_t places,
                             absl::FunctionRef<absl::Status()> enqueue,
                             absl::FunctionRef<absl::Status(absl::Status)> agree) {
  if (!failure_.ok()) return shared_ ? failure_ : enqueue();
  if (!entries_.contains(size)) MakeRoom();
  Entry& entry = entries_[size];
  entry.used = ++passes_;
  if (entry.places != places) {
    entry.graph.reset();
    entry.known = false;
    entry.places = places;
  }
  if (!entry.known) {
    entry.known = true;
    return enqueue();
  }
  if (entry.graph == nullptr) {
    failure_ = agree(Capture(device, enqueue, &entry));
    if (!failure_.ok()) {
      entries_.clear();
      return shared_ ? failure_ : enqueue();
    }
    ++captured_;
  } else {
    ++replayed_;
  }
  return ToStatus(cudaGraphLaunch(entry.graph.get(), device.stream()), "launch of a graph");
}

absl::Status GraphCache::Capture(const Device& device, absl::FunctionRef<absl::Status()> enqueue,
                                 Entry* entry) const {
  // Only this thread is restricted: other ranks of the process may allocate meanwhile.
  absl::Status status =
      ToStatus(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal),
               "beginning of a graph");
  if (!status.ok()) return status;
  status = enqueue();
  cudaGraph_t graph = nullptr;
  status.Update(ToStatus(cudaStreamEndCapture(device.stream(), &graph), "capture of a graph"));
  cudaGraphExec_t made = nullptr;
  if (status.ok()) status = ToStatus(cudaGraphInstantiate(&made, graph, 0), "making of a graph");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) {
    cudaGetLastError();  // clears the error, which is already reported
    return status;
  }
  entry->graph.reset(made);
  return absl::OkStatus();
}

// Evicts the least recently used one.
void GraphCache::MakeRoom() {
  if (entries_.size() < most_) return;
  entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                  [](auto& a, auto& b) { return a.second.used < b.second.used; }));
}

}  // namespace specfabric::model::cuda
