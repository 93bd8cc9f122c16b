#ifndef SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROWS_H_
#define SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROWS_H_

// Rows of draft probabilities on the device (verification/device_draft_rows.h): their layout, the
// kernels that compute them and draw from them, and the validation of rows that a peer sent.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/isa.h"
#include "base/types.h"
#include "sampling/draft_row.h"
#include "verification/cuda/row_distribution.h"
#include "verification/device_draft_rows.h"

namespace specfabric::verification::cuda {

// The layout of one row (speculation/draft_probs.h): ids, unless it has the whole vocabulary, then
// probabilities, then zeros up to a multiple of an id's size.
struct DraftRowLayout {
  int32_t vocabulary = 0;
  int32_t entries = 0;

  SPECFABRIC_HOST_DEVICE bool whole() const { return entries == vocabulary; }
  SPECFABRIC_HOST_DEVICE int64_t id_bytes() const {
    return whole() ? 0 : int64_t{entries} * sizeof(base::TokenId);
  }
  SPECFABRIC_HOST_DEVICE int64_t row_bytes() const {
    const int64_t probs = int64_t{entries} * sizeof(uint16_t);
    return whole() ? probs : id_bytes() + (probs + 3) / 4 * 4;
  }
};

// Rows to compute from logits, all in device memory. `rows` has a tree of one node for each, whose
// round's sampling and first_logit are those of the RowDraw.
struct DrawBatch {
  RoundBatch rows = {};
  const RowDraw* draws = nullptr;  // [rows.nodes]
  bool cut = true;                 // whether any draw has a top_n; true is always right
};

// The size of EnqueueDraws' workspace in device memory, aligned to 16 bytes: a little more than
// half the size of the rows' logits.
size_t DrawBytes(const RoundBatch& rows);

// Enqueues DeviceDraftRows::Draw. drawn: [nodes], device memory. joins: RowJoinBytes of it
// (row_join.h). The batch has passed CheckRoundBatch. Internal: an error of the device.
absl::Status EnqueueDraws(const DrawBatch& batch, void* workspace, void* joins, DrawnRow* drawn,
                          base::cuda::Stream stream);

// Enqueues DeviceDraftRows::Validate. rows: 1 to 65535; facts: [rows], device memory. Internal: an
// error of the device.
absl::Status EnqueueValidate(const uint8_t* bytes, int32_t rows, const DraftRowLayout& layout,
                             sampling::DraftRowFacts* facts, base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROWS_H_
