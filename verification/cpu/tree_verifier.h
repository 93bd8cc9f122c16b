#ifndef SPECFABRIC_VERIFICATION_CPU_TREE_VERIFIER_H_
#define SPECFABRIC_VERIFICATION_CPU_TREE_VERIFIER_H_

// The verification methods that weigh p (verification/reference/acceptance.h) as they run in
// service: the same decisions from the same random numbers, on rows of float32 logits. Only the
// rows that decide are read.

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

// One sequence's round on its owner rank, where whole rows are.
struct TreeToVerify {
  // Siblings in draw order; at most kMaxVerifyNodes.
  const speculation::TokenTree* tree = nullptr;
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kRejection;                           // not kCoupled
  speculation::SiblingDraw draw = speculation::SiblingDraw::kDeterministic;  // as Allows() says
  base::SamplingParams sampling = {};                                        // temperature > 0
  TypicalOptions typical = {};
  // Where NeedsDraftRows(verification, draw): the draft's draft_probs, and of each node the row
  // that its token was drawn from. draft_row: [nodes]; the root's is not read.
  const speculation::DraftProbs* draft_probs = nullptr;
  absl::Span<const int32_t> draft_row = {};
};

// The logits, [vocabulary], of the token after `node`, after penalties and bias. Asked at most once
// a node; must stay until the next call.
using LogitRow = absl::FunctionRef<absl::Span<const float>(int node)>;

// Owned by one rank's thread; keeps its memory from round to round: a row, and for kTraversal a
// row more for each level of the tree.
class TreeVerifier {
 public:
  // isa: one that base::Supported(); all of them accept the same.
  explicit TreeVerifier(int32_t vocabulary, base::Isa isa = base::BestIsa());
  TreeVerifier(const TreeVerifier&) = delete;
  TreeVerifier& operator=(const TreeVerifier&) = delete;

  // What is accepted ends before a row of logits that are not finite. Such rows count only where
  // they choose the token after the accepted path. random: of this round. Row numbers and tokens
  // are in range (the caller checked what it was sent). Temperature 0 is kCoupled's.
  speculation::Accepted Verify(const TreeToVerify& round, LogitRow row,
                               const PhiloxRandomness& random);

 private:
  class Round;

  RowDistribution& DistributionAt(int depth);

  RowScratch scratch_;
  std::deque<RowDistribution> distributions_;  // by depth: references stay
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_CPU_TREE_VERIFIER_H_
