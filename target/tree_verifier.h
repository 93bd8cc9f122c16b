#ifndef SPECFABRIC_TARGET_TREE_VERIFIER_H_
#define SPECFABRIC_TARGET_TREE_VERIFIER_H_

// The couplings that weigh p (speculation/acceptance.h) as they run in service: the same decisions
// from the same random numbers, on rows of float32 logits. Only the rows that decide are read.

#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/isa.h"
#include "base/types.h"
#include "schemas/draft_weights.h"
#include "speculation/acceptance.h"
#include "speculation/coupling.h"
#include "speculation/randomness.h"
#include "speculation/tree.h"
#include "target/row_law.h"

namespace specfabric::target {

// One sequence's round on its owner rank, where whole rows are.
struct TreeToVerify {
  // Siblings in draw order; at most kMaxVerifyNodes.
  const speculation::TokenTree* tree = nullptr;
  speculation::Coupling coupling = speculation::Coupling::kRejection;        // not kCoupled
  speculation::SiblingDraw draw = speculation::SiblingDraw::kDeterministic;  // as Allows() says
  base::SamplingParams sampling = {};                                        // temperature > 0
  speculation::TypicalOptions typical = {};
  // Where NeedsDraftRows(coupling, draw): the draft's weights, and of each node the row that its
  // token was drawn from. weight_row: [nodes]; the root's is not read.
  const schemas::DraftWeights* weights = nullptr;
  absl::Span<const int32_t> weight_row = {};
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
                               const speculation::PhiloxRandomness& random);

 private:
  class Round;

  RowLaw& Law(int depth);

  RowScratch scratch_;
  std::deque<RowLaw> laws_;  // by depth: references stay
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_TREE_VERIFIER_H_
