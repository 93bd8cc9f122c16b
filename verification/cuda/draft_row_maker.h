#ifndef SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROW_MAKER_H_
#define SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROW_MAKER_H_

// DeviceDraftRows on a GPU: one copy takes the inputs of the kernels of draft_rows.h to the device,
// and one copy brings their results back.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/cuda/upload.h"
#include "verification/cuda/arg_max.h"
#include "verification/cuda/row_distribution.h"
#include "verification/device_draft_rows.h"

namespace specfabric::verification::cuda {

// Owned by one rank's thread; keeps its memory from call to call: on the device half as much as the
// logits of the rows that are computed at once.
class DraftRowMaker : public DeviceDraftRows {
 public:
  explicit DraftRowMaker(const base::cuda::Device* device) : device_(device) {}

  absl::Status Reserve(int32_t vocabulary, int32_t draws) override;
  // The logits are float32; work enqueued on the device's stream may still compute them.
  // InvalidArgument: more rows than the kernels take, or an invalid draw. After an error `drawn` is
  // unchanged.
  absl::Status Draw(const base::cuda::LogitMatrix& logits, absl::Span<const RowDraw> draws,
                    absl::Span<DrawnRow> drawn) override;
  absl::Status Validate(const uint8_t* rows, int32_t vocabulary, int32_t entries,
                        absl::Span<sampling::DraftRowFacts> facts) override;
  absl::Status Fetch(absl::Span<const uint8_t> device, uint8_t* host) override;

 private:
  const base::cuda::Device* const device_;
  base::cuda::Upload upload_;
  base::cuda::DeviceBuffer workspace_, joins_, found_;
  base::cuda::PinnedBuffer host_found_, fetched_;
  std::vector<int32_t> begin_;
  std::vector<TreeRound> rounds_;
};

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROW_MAKER_H_
