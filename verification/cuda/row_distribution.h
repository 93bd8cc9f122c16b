#ifndef SPECFABRIC_VERIFICATION_CUDA_ROW_DISTRIBUTION_H_
#define SPECFABRIC_VERIFICATION_CUDA_ROW_DISTRIBUTION_H_

// The target's distribution at every node of a batch of trees, p = softmax(logit / T) over the
// tokens that the filters keep, made on the device: the unnormalised probabilities and sums of
// verification/cpu/row_distribution.h to the bit (verification/row_probs.h), all rows at once.
//
// Filters keep what top-k, top-p and min-p of sampling::FilterMask do. Top-p adds up masses as
// whole multiples of 2^-40 of the largest, so that no order of adding changes what is kept; where
// the CPU's sum, in double precision, lies within 2^-40 of the border for each token of the
// vocabulary, the two may differ in the token at the border.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/types.h"
#include "speculation/verification_method.h"
#include "verification/cuda/arg_max.h"
#include "verification/cuda/tree_walk.h"
#include "verification/randomness.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification::cuda {

// Of filters: ids, and masses added up in 64 bits.
constexpr int32_t kMostVocabulary = 1 << 24;

// One sequence's round, as verification::TreeToVerify has it.
struct TreeRound {
  verification::RoundSite site = {};
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kRejection;                           // not kCoupled
  speculation::SiblingDraw draw = speculation::SiblingDraw::kDeterministic;  // as Allows() says
  base::SamplingParams sampling = {};  // temperature > 0; the seed is the site's
  verification::TypicalOptions typical = {};
  int32_t first_logit = 0;  // row of the logits after the root; those of other nodes follow
  // Where NeedsDraftRows(verification, draw): rows as speculation/draft_probs.h lays them out,
  // `entries` tokens each, the whole vocabulary if that is as many; sound, as DraftProbs::Open
  // found them. totals: [rows], the sum of each, by DraftProbs::total. Device memory.
  const uint8_t* draft_probs = nullptr;
  const double* totals = nullptr;
  int32_t entries = 0;
};

// All device memory, aligned as its types are.
struct RoundBatch {
  TreeBatch trees = {};                // without `ancestors` and `choices`; siblings in draw order
  const TreeRound* rounds = nullptr;   // [sequences]
  const int32_t* draft_row = nullptr;  // [nodes]: of the row that the node's token was drawn from;
                                       // where no round needs draft rows it is not read
  int32_t nodes = 0;                   // of all trees: trees.begin[sequences]
  const float* logits = nullptr;       // [rows][stride], after penalties and bias, whole rows
  int64_t stride = 0;                  // values from one row to the next
  int32_t vocabulary = 0;
};

// InvalidArgument: no trees, or more nodes or tokens than there may be.
absl::Status CheckRoundBatch(const RoundBatch& batch);

// Where what filters leave of rows lies, all device memory. A row a node, in the order of the
// batch.
struct RowFilters {
  int32_t chunks = 0;             // a row
  PackedChoice* bests = nullptr;  // [nodes][chunks], of the chunk's logits
  RowFilter* of_node = nullptr;   // [nodes]
  static size_t Bytes(const RoundBatch& batch);
  // workspace: Bytes(batch) of device memory, aligned to 16 bytes.
  static RowFilters In(const RoundBatch& batch, void* workspace);
};

// p(x) = value(x) * factor / total, `sum` and `power_sum` (of w log2(w), under kTypical alone) with
// the factor.
struct DistributionChunk {
  double factor = 1;
  double sum = 0;
  double power_sum = 0;
};

// Where distributions lie, likewise.
struct RowDistributions {
  int32_t chunks = 0;       // a row
  float* values = nullptr;  // [nodes][chunks][verification::kRowChunk], 0 past the vocabulary
  DistributionChunk* distribution_chunks = nullptr;  // [nodes][chunks]
  double* spare_sums = nullptr;                      // [sequences][chunks], of the next residual
  RowFilters filters = {};
  static size_t Bytes(const RoundBatch& batch);
  static RowDistributions In(const RoundBatch& batch, void* workspace);
};

// Enqueues: the filters become those of the batch's nodes; of a batch's rounds only first_logit and
// sampling are read, whatever the verification method. The batch has passed CheckRoundBatch.
// Internal: the device's own error.
absl::Status EnqueueRowFilters(const RoundBatch& batch, const RowFilters& filters,
                               base::cuda::Stream stream);

// Enqueues: likewise the distributions, with their filters. Rows whose filter is not finite() have
// none.
absl::Status EnqueueRowDistributions(const RoundBatch& batch, const RowDistributions& distributions,
                                     base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ROW_DISTRIBUTION_H_
