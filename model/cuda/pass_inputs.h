#ifndef SPECFABRIC_MODEL_CUDA_PASS_INPUTS_H_
#define SPECFABRIC_MODEL_CUDA_PASS_INPUTS_H_

// The inputs of a pass on the device: either as long as the batch, at any address (Upload); or, for
// passes that are captured as graphs, padded to a size that many batches share, at addresses that
// are the same for all batches of that size.

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
  const RowView* views = nullptr;       // [plans][rows], LayerPlans::all's
  const int32_t* slots = nullptr;       // AttentionPlan::slots, the same of all plans
  const int32_t* extra = nullptr;       // likewise
  const int32_t* logit_rows = nullptr;  // [logit rows]
  const float* states = nullptr;        // Batch::states
};

struct PassSize {
  int32_t rows = 0, logit_rows = 0;
  auto operator<=>(const PassSize&) const = default;
};

// Passes of more rows are not captured: their kernels take longer than their launches.
constexpr int32_t kMaxPaddedRows = 256;

// Rounds both numbers up to a power of two, or above 64 to a multiple of 64. Each must be at least
// 1 and at most kMaxPaddedRows.
PassSize PaddedSize(const PassSize& size);

// A rank's host arrays for one batch. The angles are [rows][half], half: half of the head size.
struct PassArrays {
  const Batch* batch = nullptr;
  const std::vector<AttentionPlan>* plans = nullptr;  // LayerPlans::all
  const std::vector<float>* cosines = nullptr;
  const std::vector<float>* sines = nullptr;
  int32_t half = 0;
};

class PaddedInputs {
 public:
  // Enqueues one copy of arrays padded to `size`, which must be a PaddedSize that holds the batch;
  // the batch has at least one row and one logit row. Padding rows repeat the first row but write
  // no KV (write_slot -1); padding logit rows repeat the first. Pointers are the same for all
  // batches of one size until moves() changes. No enqueued work may still use the previous copy.
  absl::StatusOr<PassInputs> Copy(const base::cuda::Device& device, const PassArrays& arrays,
                                  const PassSize& size);
  // How often the arrays were reallocated to grow.
  uint64_t moves() const { return moves_; }

 private:
  base::cuda::PinnedBuffer staged_;
  base::cuda::DeviceBuffer copied_;
  uint64_t moves_ = 0;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PASS_INPUTS_H_
