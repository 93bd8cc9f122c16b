#ifndef SPECFABRIC_MODEL_CUDA_DRAFT_ROW_MAKER_H_
#define SPECFABRIC_MODEL_CUDA_DRAFT_ROW_MAKER_H_

// DeviceDraftRows on one device: what the kernels of draft_rows.h read goes there in one copy, and
// what they found comes back in one.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/cuda/arg_max.h"
#include "model/cuda/device.h"
#include "model/cuda/memory.h"
#include "model/cuda/row_distribution.h"
#include "model/cuda/upload.h"
#include "model/device_draft_rows.h"

namespace specfabric::model::cuda {

// Owned by one rank's thread; keeps its memory from call to call. On the device that is half of
// what the logits of the rows take that are made at once.
class DraftRowMaker {
 public:
  // Of rows of so many tokens.
  absl::Status Reserve(const Device& device, int32_t vocabulary, int32_t draws);
  // DeviceDraftRows::Draw, from logits of the whole vocabulary in float32, which the device's
  // stream may still be making. InvalidArgument: more rows than the kernels take, or a draw that is
  // none. `drawn` is as it was after an error.
  absl::Status Draw(const Device& device, const LogitMatrix& logits,
                    absl::Span<const RowDraw> draws, absl::Span<DrawnRow> drawn);
  absl::Status Validate(const Device& device, const uint8_t* rows, int32_t vocabulary,
                        int32_t entries, absl::Span<sampling::DraftRowFacts> facts);

 private:
  Upload upload_;
  DeviceBuffer workspace_, found_;
  PinnedBuffer host_found_;
  std::vector<int32_t> begin_;
  std::vector<TreeRound> rounds_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_DRAFT_ROW_MAKER_H_
