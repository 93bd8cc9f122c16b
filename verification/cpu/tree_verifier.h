#ifndef SPECFABRIC_VERIFICATION_CPU_TREE_VERIFIER_H_
#define SPECFABRIC_VERIFICATION_CPU_TREE_VERIFIER_H_

// The verification methods that use target probabilities (verification/reference/acceptance.h), as
// CPUs run them: the same decisions as the reference from the same random numbers, on rows of
// float32 logits. Reads only the rows that the decisions need.

#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/isa.h"
#include "base/types.h"
#include "speculation/draft_probs.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"
#include "verification/cpu/row_distribution.h"
#include "verification/randomness.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification {

// One sequence's round, on its owner rank, which has the whole rows.
struct TreeToVerify {
  // Siblings in draw order; at most kMaxVerifyNodes.
  speculation::TreeView tree = {};
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kRejection;                           // not kCoupled
  speculation::SiblingDraw draw = speculation::SiblingDraw::kDeterministic;  // that Allows() it
  base::SamplingParams sampling = {};                                        // temperature > 0
  TypicalOptions typical = {};
  // Where NeedsDraftRows(verification, draw): the draft probabilities, and the row of them that
  // each node's token was drawn from. draft_row: [nodes]; the root's is not read.
  const speculation::DraftProbs* draft_probs = nullptr;
  absl::Span<const int32_t> draft_row = {};
};

// Returns the logits, [vocabulary], of the token after `node`, with penalties and bias applied.
// Called at most once for each node; the row must stay valid until the next call.
using LogitRow = absl::FunctionRef<absl::Span<const float>(int node)>;

// Owned by one rank's thread; keeps its memory from round to round: one row, and for kTraversal one
// more for each level of the tree.
class TreeVerifier {
 public:
  // isa: base::Supported() on this CPU; the results do not depend on it.
  explicit TreeVerifier(int32_t vocabulary, base::Isa isa = base::BestIsa());
  TreeVerifier(const TreeVerifier&) = delete;
  TreeVerifier& operator=(const TreeVerifier&) = delete;

  // The accepted path ends at a node whose logits are not finite; *accepted is not `finite` only if
  // these choose the token after the path. It keeps its memory. random: of this round. Row numbers
  // and tokens are in range (the caller validated what it received). Temperature 0 is verified with
  // kCoupled instead.
  void Verify(const TreeToVerify& round, LogitRow row, const PhiloxRandomness& random,
              speculation::Accepted* accepted);

 private:
  class Round;

  RowDistribution& DistributionAt(int depth);

  RowScratch scratch_;
  std::deque<RowDistribution> distributions_;  // by depth; a deque, so that references stay valid
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_CPU_TREE_VERIFIER_H_
