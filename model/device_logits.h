#ifndef SPECFABRIC_MODEL_DEVICE_LOGITS_H_
#define SPECFABRIC_MODEL_DEVICE_LOGITS_H_

// Logits that are where a device computed them, and what is decided there. Rows are logit rows of
// the pass, from 0 on. Spans are of the host's memory, but where it is said that they may be of the
// device's, and read during the call alone.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "sampling/sampling.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"
#include "verification/reference/acceptance.h"

namespace specfabric::model {

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
  verification::TypicalOptions typical = {};
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

// Of one rank. ResourceExhausted or Internal: the device failed, and what was asked for is void.
class DeviceLogits {
 public:
  virtual ~DeviceLogits() = default;
  // best[i] = sampling::PerturbedArgMax over this rank's part of row choices[i].row, with the
  // same bits.
  virtual absl::Status Best(absl::Span<const RowChoice> choices,
                            absl::Span<sampling::ScoredToken> best) = 0;
  // accepted[i] becomes what is accepted of trees[i]: what speculation::WalkCoupled makes of
  // sampling::SampleRow at each node, or verification::TreeVerifier, except where
  // model/cuda/row_distribution.h says; not `finite` where the logits after the path are not. Of a
  // rank that has the whole vocabulary. Waits for the device once.
  virtual absl::Status Verify(absl::Span<const DeviceTree> trees,
                              absl::Span<speculation::Accepted> accepted) = 0;
  // These rows, [rows.size()][width], in the host's memory until the next Fetch or pass.
  virtual absl::StatusOr<const float*> Fetch(absl::Span<const int32_t> rows) = 0;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_DEVICE_LOGITS_H_
