#include "model/cuda/tree_attention_device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "base/cuda/error.h"

namespace specfabric::model::cuda {

using base::cuda::ToStatus;

absl::Status CountProcessors(int32_t* processors) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
  }
  return ToStatus(error, "device of tree attention");
}

absl::Status CheckAligned(const LayerAttention& layer) {
  for (const void* memory :
       {layer.queries, layer.keys, layer.values, static_cast<const void*>(layer.out)}) {
    if (reinterpret_cast<uintptr_t>(memory) % 16 == 0) continue;
    return absl::InvalidArgumentError(
        "tree attention: memory that is not aligned; allowed: multiples of 16 bytes");
  }
  return absl::OkStatus();
}

absl::Status PlanStaging::Reserve(size_t bytes) {
  constexpr int kBuffers = 2;
  absl::StatusOr<base::cuda::PinnedRing> ring = base::cuda::PinnedRing::Create(bytes, kBuffers);
  if (!ring.ok()) return ring.status();
  ring_ = *std::move(ring);
  return device_.Reserve(bytes);
}

}  // namespace specfabric::model::cuda
