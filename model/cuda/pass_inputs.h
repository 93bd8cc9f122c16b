#ifndef SPECFABRIC_MODEL_CUDA_PASS_INPUTS_H_
#define SPECFABRIC_MODEL_CUDA_PASS_INPUTS_H_

// What a pass reads of its batch, on the device: as long as the batch, wherever it fits (Upload);
// or, for passes that are captured as graphs, padded to a size that many batches share, at places
// that are the same for all batches of that size.

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/attention_plan.h"
#include "model/batch.h"

namespace specfabric::model::cuda {

struct PassInputs {
  const base::TokenId* tokens = nullptr;  // [rows]
  const float* cosines = nullptr;         // [rows][head_dim / 2]
  const float* sines = nullptr;
  const RowView* views = nullptr;       // [rows]
  const int32_t* slots = nullptr;       // AttentionPlan::slots
  const int32_t* extra = nullptr;       // AttentionPlan::extra
  const int32_t* logit_rows = nullptr;  // [logit rows]
};

struct PassSize {
  int32_t rows = 0, logit_rows = 0;
  auto operator<=>(const PassSize&) const = default;
};

// Passes of more rows are not captured: the device has enough to do for the host to keep up.
constexpr int32_t kMaxPaddedRows = 256;

// The least of a few sizes that holds it: powers of two to 64, multiples of 64 after. Each number
// at least 1 and at most kMaxPaddedRows.
PassSize PaddedSize(const PassSize& size);

// A rank's host arrays for one batch. The angles are [rows][half], half of a head's size.
struct PassArrays {
  const Batch* batch = nullptr;
  const AttentionPlan* plan = nullptr;
  const std::vector<float>* cosines = nullptr;
  const std::vector<float>* sines = nullptr;
  int32_t half = 0;
};

class PaddedInputs {
 public:
  // Enqueues one copy of arrays of `size`, which must be a PaddedSize that holds the batch, of at
  // least one row and one logit row. Rows beyond the batch's are its first one's, but write no KV
  // (write_slot -1); logit rows beyond are its first. Pointers are the same for all batches of one
  // size until moves() changes. Nothing that was enqueued may still use the copy before.
  absl::StatusOr<PassInputs> Copy(const base::cuda::Device& device, const PassArrays& arrays,
                                  const PassSize& size);
  // How often the arrays had to move, since they have grown.
  uint64_t moves() const { return moves_; }

 private:
  base::cuda::PinnedBuffer staged_;
  base::cuda::DeviceBuffer copied_;
  uint64_t moves_ = 0;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PASS_INPUTS_H_
