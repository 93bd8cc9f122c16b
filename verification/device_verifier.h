#ifndef SPECFABRIC_VERIFICATION_DEVICE_VERIFIER_H_
#define SPECFABRIC_VERIFICATION_DEVICE_VERIFIER_H_

// Verification on the device that computed the logits. Rows are the pass's logit rows, counted from
// 0. Spans are of host memory unless a comment says otherwise, and are read only during the call.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/logit_matrix.h"
#include "base/types.h"
#include "sampling/sampling.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification {

// How coupled verification chooses the token of one logit row (verification.md section 1). At
// temperature 0 it chooses greedily.
struct RowChoice {
  int32_t row = 0;
  uint64_t seed = 0;
  uint32_t position = 0;
  float temperature = 0;
};

// One sequence's tree to verify, validated like the rows of a plan; for a tree of one node this
// chooses the next token. Only filters and temperature apply to its logits: no penalties or bias.
struct DeviceTree {
  // [nodes], at most speculation::kMaxVerifyNodes: parents[0] is -1, siblings in draw order.
  absl::Span<const int32_t> parents = {};
  absl::Span<const base::TokenId> tokens = {};
  int32_t first_logit = 0;  // the root's logit row; the other nodes' rows follow
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;
  speculation::SiblingDraw draw = speculation::SiblingDraw::kCoupledTopK;  // that Allows() it
  base::SamplingParams sampling = {};  // temperature 0 only with kCoupled
  TypicalOptions typical = {};
  uint32_t position = 0;  // index, in prompt + output, of the first token that the round chooses
  uint32_t draw_number = 0;
  // The draft probabilities where NeedsDraftRows(verification, draw), else empty. draft_row:
  // [nodes] the row that each node's token was drawn from (the root's is not read); draft_probs:
  // the rows in the layout of speculation/draft_probs.h, validated; totals: [rows] the sum of each
  // row; entries: tokens in a row.
  absl::Span<const int32_t> draft_row = {};
  absl::Span<const uint8_t> draft_probs = {};
  bool draft_probs_on_device = false;  // aligned to 8 bytes there
  absl::Span<const double> totals = {};
  int32_t entries = 0;
};

// Verifies for one rank, on its thread. ResourceExhausted or Internal: the device failed, and the
// results are not valid.
class DeviceVerifier {
 public:
  // device: that of the rank's model (model::RankModel::device), which must outlive the result;
  // null where it is null, and in a build without CUDA.
  static std::unique_ptr<DeviceVerifier> Create(const base::cuda::Device* device);
  virtual ~DeviceVerifier() = default;
  // best[i] = sampling::PerturbedArgMax over this rank's part of row choices[i].row, bit for bit.
  virtual absl::Status Best(const base::cuda::LogitMatrix& logits,
                            absl::Span<const RowChoice> choices,
                            absl::Span<sampling::ScoredToken> best) = 0;
  // accepted[i] becomes the accepted path of trees[i]: the result of speculation::WalkCoupled with
  // sampling::SampleRow at each node, or of TreeVerifier, but for the difference that
  // verification/cuda/row_distribution.h describes. It is not `finite` where the logits after the
  // path are not. `logits`: of a rank that has the whole vocabulary. Waits for the device once.
  virtual absl::Status Verify(const base::cuda::LogitMatrix& logits,
                              absl::Span<const DeviceTree> trees,
                              absl::Span<speculation::Accepted> accepted) = 0;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_DEVICE_VERIFIER_H_
