#ifndef SPECFABRIC_VERIFICATION_DEVICE_VERIFIER_H_
#define SPECFABRIC_VERIFICATION_DEVICE_VERIFIER_H_

// Verification on the device that computed the logits. Rows are logit rows of the pass, from 0 on.
// Spans are of the host's memory, except where a comment says that they may be of the device's;
// they are read during the call alone.

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

// How the token of one logit row is chosen by the coupled rule (verification.md section 1):
// temperature 0 is greedily.
struct RowChoice {
  int32_t row = 0;
  uint64_t seed = 0;
  uint32_t position = 0;
  float temperature = 0;
};

// One sequence's tree to verify, sound as the rows of a plan are; a single node's token is chosen.
// Its logits are what filters and temperature begin with: nothing changes them before.
struct DeviceTree {
  // [nodes], at most speculation::kMaxVerifyNodes: parents[0] is -1, siblings in draw order.
  absl::Span<const int32_t> parents = {};
  absl::Span<const base::TokenId> tokens = {};
  int32_t first_logit = 0;  // the root's row; those of the other nodes follow
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;
  speculation::SiblingDraw draw = speculation::SiblingDraw::kCoupledTopK;  // as Allows() says
  base::SamplingParams sampling = {};  // temperature 0: with kCoupled alone
  TypicalOptions typical = {};
  uint32_t position = 0;  // in prompt + output, of the first token that the round chooses
  uint32_t draw_number = 0;
  // Where NeedsDraftRows(verification, draw), else empty: [nodes] the row that each node's token
  // was drawn from (the root's is not read), the rows as speculation/draft_probs.h lays them out
  // and finds them sound, [rows] the sum of each, and how many tokens one names.
  absl::Span<const int32_t> draft_row = {};
  absl::Span<const uint8_t> draft_probs = {};
  bool draft_probs_on_device = false;  // aligned to 8 bytes there
  absl::Span<const double> totals = {};
  int32_t entries = 0;
};

// Of one rank, on its thread. ResourceExhausted or Internal: the device failed, and what was asked
// for is void.
class DeviceVerifier {
 public:
  // On the device that a rank's model names (model::RankModel::device), which must outlive it;
  // null: there is none.
  static std::unique_ptr<DeviceVerifier> Create(const base::cuda::Device* device);
  virtual ~DeviceVerifier() = default;
  // best[i] = sampling::PerturbedArgMax over this rank's part of row choices[i].row, with the
  // same bits.
  virtual absl::Status Best(const base::cuda::LogitMatrix& logits,
                            absl::Span<const RowChoice> choices,
                            absl::Span<sampling::ScoredToken> best) = 0;
  // accepted[i] becomes what is accepted of trees[i]: what speculation::WalkCoupled makes of
  // sampling::SampleRow at each node, or verification::TreeVerifier, except where
  // verification/cuda/row_distribution.h says; not `finite` where the logits after the path are
  // not. `logits`: of a rank that has the whole vocabulary. Waits for the device once.
  virtual absl::Status Verify(const base::cuda::LogitMatrix& logits,
                              absl::Span<const DeviceTree> trees,
                              absl::Span<speculation::Accepted> accepted) = 0;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_DEVICE_VERIFIER_H_
