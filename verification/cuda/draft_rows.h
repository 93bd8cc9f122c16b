#ifndef SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROWS_H_
#define SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROWS_H_

// The rows of a draft's probs on the device (verification/device_draft_rows.h): how they lie, how
// they are made and drawn from, and whether those that a peer has sent are sound.

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

// As speculation/draft_probs.h lays out one row: ids where it does not name all tokens, probs, and
// zeros up to a multiple of an id's size.
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

// Rows to be made of the logits, all in device memory: trees of a node each, of whose rounds
// sampling and first_logit say what RowDraw does.
struct DrawBatch {
  RoundBatch rows = {};
  const RowDraw* draws = nullptr;  // [rows.nodes]
};

// Device memory that EnqueueDraws works in, aligned to 16 bytes: half of what the rows' logits
// take, and some.
size_t DrawBytes(const RoundBatch& rows);

// Enqueues DeviceDraftRows::Draw. drawn: [nodes], device memory. The batch has passed
// CheckRoundBatch. Internal: the device's own error.
absl::Status EnqueueDraws(const DrawBatch& batch, void* workspace, DrawnRow* drawn,
                          base::cuda::Stream stream);

// Enqueues DeviceDraftRows::Validate. rows: 1 to 65535; facts: [rows], device memory. Internal: the
// device's own error.
absl::Status EnqueueValidate(const uint8_t* bytes, int32_t rows, const DraftRowLayout& layout,
                             sampling::DraftRowFacts* facts, base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_DRAFT_ROWS_H_
