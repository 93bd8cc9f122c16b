#include "model/cuda/tree_attention_device.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "base/cuda/error.h"

namespace specfabric::model::cuda {

using base::cuda::Stream;
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

void PlanStaging::EventDestroy::operator()(CUevent_st* event) const { cudaEventDestroy(event); }

absl::Status PlanStaging::Reserve(size_t bytes) {
  for (Piece& piece : pieces_) {
    if (absl::Status status = piece.memory.Reserve(bytes); !status.ok()) return status;
    std::memset(piece.memory.As<void>(), 0, bytes);
    cudaEvent_t event = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    piece.copied.reset(event);
    if (error != cudaSuccess) return ToStatus(error, "event of an attention plan");
  }
  return device_.Reserve(bytes);
}

absl::Status PlanStaging::Next(std::byte** memory) {
  current_ = (current_ + 1) % kPieces;
  Piece& piece = pieces_[current_];
  *memory = piece.memory.As<std::byte>();
  return ToStatus(cudaEventSynchronize(piece.copied.get()),  // at once if never recorded
                  "copy of an earlier attention plan");
}

absl::Status PlanStaging::Copy(size_t bytes, Stream stream) {
  const Piece& piece = pieces_[current_];
  cudaError_t error = cudaMemcpyAsync(device_.As<void>(), piece.memory.As<void>(), bytes,
                                      cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) error = cudaEventRecord(piece.copied.get(), stream);
  return ToStatus(error, "copy of an attention plan");
}

}  // namespace specfabric::model::cuda
