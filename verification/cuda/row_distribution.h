#ifndef SPECFABRIC_VERIFICATION_CUDA_ROW_DISTRIBUTION_H_
#define SPECFABRIC_VERIFICATION_CUDA_ROW_DISTRIBUTION_H_

// The target's distribution at every node of a batch of trees, p = softmax(logit / T) over the
// tokens that the filters keep, computed on the device for all rows at once: bit for bit the
// unnormalised probabilities and sums of verification/cpu/row_distribution.h
// (verification/row_probs.h). Where there are no filters each logit is read once, and of a row no
// more is written than a few numbers for each chunk; values are computed again where they are
// needed.
//
// The filters are top-k, top-p and min-p as in sampling::FilterMask. Top-p adds up probabilities as
// multiples of 2^-40 of the largest, so that the order of addition does not matter. If the CPU's
// sum, in double precision, lies within (vocabulary size) 2^-40 of the threshold, the two may
// differ in the last token that they keep.

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

// The limit of the filters' ids, and of their sums in 64 bits.
constexpr int32_t kMostVocabulary = 1 << 24;

// One sequence's round; see verification::TreeToVerify.
struct TreeRound {
  verification::RoundSite site = {};
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kRejection;                           // not kCoupled
  speculation::SiblingDraw draw = speculation::SiblingDraw::kDeterministic;  // that Allows() it
  base::SamplingParams sampling = {};  // temperature > 0; the seed is in `site`
  verification::TypicalOptions typical = {};
  int32_t first_logit = 0;  // the root's logit row; the other nodes' rows follow
  // Where NeedsDraftRows(verification, draw): rows in the layout of speculation/draft_probs.h, of
  // `entries` tokens each (the whole vocabulary if that is as many), validated by DraftProbs::Open.
  // totals: [rows], the sum of each (DraftProbs::total). Device memory.
  const uint8_t* draft_probs = nullptr;
  const double* totals = nullptr;
  int32_t entries = 0;
};

// All pointers are to device memory, aligned as their types.
struct RoundBatch {
  TreeBatch trees = {};                // `ancestors` and `choices` not set; siblings in draw order
  const TreeRound* rounds = nullptr;   // [sequences]
  const int32_t* draft_row = nullptr;  // [nodes]: the row that the node's token was drawn from;
                                       // not read where no round needs draft rows
  int32_t nodes = 0;                   // of all trees: trees.begin[sequences]
  const float* logits = nullptr;       // [rows][stride], after penalties and bias, whole rows
  int64_t stride = 0;                  // values from one row to the next
  int32_t vocabulary = 0;
  bool filtered = true;    // whether any round's sampling has filters; true is always right
  bool whole_rows = true;  // whether any has draft rows of the whole vocabulary: for speed alone
};

// InvalidArgument: no trees, or too many nodes or tokens.
absl::Status CheckRoundBatch(const RoundBatch& batch);

// The results of the filters, in device memory: one row for each node, in the order of the batch.
struct RowFilters {
  static constexpr int kBins = 256;
  int32_t chunks = 0;             // in a row
  PackedChoice* bests = nullptr;  // [nodes][chunks], the best Competitor of each chunk
  RowFilter* of_node = nullptr;   // [nodes]
  RowJoin* joins = nullptr;       // [nodes]
  // [nodes][kBins], zeros but while filters are made: how many tokens, or how much mass, rows have
  // at each distance from their best.
  unsigned long long* histograms = nullptr;
  static size_t Bytes(const RoundBatch& batch);
  // workspace: Bytes(batch) of device memory, aligned to 16 bytes. joins: RowJoinBytes of it.
  static RowFilters In(const RoundBatch& batch, void* workspace, void* joins);
};

// p(x) = value(x) * factor / total, where value(x) is ScaledExp(logit, reference), 0 for what the
// filters drop, as long as the chunk is not `kept`, and then in memory: residuals are. `sum` (of w
// = value * factor) and `power_sum` (of w log2(w), for kTypical only) include the factor.
struct DistributionChunk {
  double factor = 1;
  double sum = 0;
  double power_sum = 0;
  float reference = 0;
  int32_t place = 0;  // if kept: the row of RowDistributions::values that has the chunk's values
  bool kept = false;
  bool written = false;  // its spare place has values of the residual that is being made
};
struct DistributionTotals {
  double sum = 0;        // of the chunks' sums, in order
  double power_sum = 0;  // likewise
};

// A residual that verification will ask for, unless draft probabilities change meanwhile: what the
// node's only child leaves of p where the path has this probability. pi = 0: none.
struct WantedResidual {
  double pi = 0;
  int32_t child = 0;  // in the batch
};

// The distributions, in device memory, likewise.
struct RowDistributions {
  int32_t chunks = 0;  // in a row
  // [nodes + sequences][chunks][verification::kRowChunk], for residuals: a row for each node and a
  // spare one for each sequence, whose chunks change places with those of the nodes.
  float* values = nullptr;
  DistributionChunk* distribution_chunks = nullptr;  // [nodes][chunks]
  DistributionTotals* totals = nullptr;              // [nodes]
  double* spare_sums = nullptr;                      // [sequences][chunks], of the next residual
  WantedResidual* wanted = nullptr;                  // [nodes]; null: none
  double* wanted_sums = nullptr;                     // [nodes][chunks], of these residuals
  int32_t* spare_places = nullptr;                   // [sequences][chunks], rows of `values`
  PackedChoice* published = nullptr;  // [nodes][chunks], zeros but while the rows are read
  RowFilters filters = {};
  static size_t Bytes(const RoundBatch& batch);
  static RowDistributions In(const RoundBatch& batch, void* workspace, void* joins);
};

// Enqueues: computes the filters of the batch's nodes, or only of those whose rounds have any. Of
// the rounds only first_logit and sampling are read, whatever the verification method. The batch
// has passed CheckRoundBatch. Internal: an error of the device.
absl::Status EnqueueRowFilters(const RoundBatch& batch, const RowFilters& filters,
                               bool only_filtered, base::cuda::Stream stream);

// Enqueues: likewise computes the distributions and their filters; of nodes without filters, `best`
// has a score but no token, and there are no `bests`. A row whose filter is not finite() has no
// distribution.
absl::Status EnqueueRowDistributions(const RoundBatch& batch, const RowDistributions& distributions,
                                     base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ROW_DISTRIBUTION_H_
