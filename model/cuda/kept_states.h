#ifndef SPECFABRIC_MODEL_CUDA_KEPT_STATES_H_
#define SPECFABRIC_MODEL_CUDA_KEPT_STATES_H_

// cpu/kept_states.h on a GPU: the residual streams at some boundaries, rounded to bfloat16, as they
// are sent. Used by the rank's thread; memory is the device's.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/cuda/upload.h"
#include "model/cuda/state_rows.h"
#include "model/hidden_states.h"

namespace specfabric::model::cuda {

class KeptStates {
 public:
  explicit KeptStates(int32_t hidden) : hidden_(hidden) {}

  const std::vector<int32_t>& boundaries() const { return boundaries_; }
  bool Keeps(int32_t boundary) const;
  // From now on, in passes of up to so many rows. ResourceExhausted: there is no memory for them;
  // nothing is kept then. No enqueued work may still use the memory.
  absl::Status Keep(std::vector<int32_t> boundaries, int32_t most_rows);
  // Whether there is room for a pass of so many rows; Reserve makes it.
  bool Fits(int32_t rows) const { return rows * RowBytes() <= kept_.bytes(); }
  absl::Status Reserve(int32_t rows);

  // Enqueues: keeps residual, [rows][hidden], if it is at one of the boundaries.
  absl::Status EnqueueKeep(const base::cuda::Device& device, int32_t boundary,
                           const float* residual, int32_t rows) const;
  // As RankModel::CopyStates.
  absl::Status Gather(const base::cuda::Device& device, absl::Span<const StateCopy> copies);

 private:
  GatherStatesArgs ArgsOf(const StateCopy& copy, uint16_t* to) const;
  size_t RowBytes() const { return boundaries_.size() * hidden_ * sizeof(uint16_t); }

  int32_t hidden_;
  std::vector<int32_t> boundaries_;
  base::cuda::DeviceBuffer kept_;  // [rows][boundaries][hidden]
  base::cuda::Upload upload_;
  base::cuda::DeviceBuffer gathered_;  // of copies to the host
  base::cuda::PinnedBuffer fetched_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_KEPT_STATES_H_
