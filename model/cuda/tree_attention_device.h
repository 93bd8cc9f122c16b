#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_DEVICE_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_DEVICE_H_

// What the kernels of tree attention share on the host.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/cuda/memory.h"
#include "base/cuda/stream.h"
#include "model/cuda/tree_attention.h"

struct CUevent_st;

namespace specfabric::model::cuda {

// Sets `processors` to the current device's streaming multiprocessors. Internal: the device's
// error.
absl::Status CountProcessors(int32_t* processors);

// InvalidArgument: memory that is not aligned to 16 bytes.
absl::Status CheckAligned(const LayerAttention& layer);

// The way of plans to the device: they are put together in two pieces of pinned memory in turn, so
// that the next is made while the last is still being copied.
class PlanStaging {
 public:
  // Takes the memory of plans of at most `bytes`, on the host and on the current device.
  // ResourceExhausted: no memory. Internal: the device's own error.
  absl::Status Reserve(size_t bytes);
  // Memory for the next plan. Waits only if the device has not yet made the copy of two plans ago.
  absl::Status Next(std::byte** memory);
  // Enqueues the copy of what was written to it; earlier work of the stream uses the plan before.
  absl::Status Copy(size_t bytes, base::cuda::Stream stream);
  // The plan on the device, always at the same address.
  std::byte* device() const { return device_.As<std::byte>(); }

 private:
  struct EventDestroy {
    void operator()(CUevent_st* event) const;
  };
  struct Piece {
    base::cuda::PinnedBuffer memory;
    std::unique_ptr<CUevent_st, EventDestroy> copied;
  };

  static constexpr int kPieces = 2;
  Piece pieces_[kPieces];
  int current_ = 0;
  base::cuda::DeviceBuffer device_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_DEVICE_H_
