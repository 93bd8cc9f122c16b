#ifndef SPECFABRIC_SPECULATION_MERGE_H_
#define SPECFABRIC_SPECULATION_MERGE_H_

// One tree of several drafters' guesses (SpecInfer, arXiv 2305.09781): what they agree on is one
// node.
//
// Only where any tree may be verified, which is under kCoupled and kTypical. Where siblings'
// probabilities are weighed, dropping a sibling that another drafter drew too bends the
// distribution (verification.md section 3, Trimming), and each sibling would have to name its own
// row of q: there one drafter's tree is verified in a round.

#include <cstdint>
#include <vector>

#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::speculation {

constexpr bool Merges(VerificationMethod verification) { return !UsesDraftProbs(verification); }

struct MergedTree {
  TokenTree tree;
  std::vector<int32_t> of_first;   // [nodes]: the same node in the first tree, or -1
  std::vector<int32_t> of_second;  // [nodes]: in the second
};

// The union of two trees under one root token: nodes are the same if their paths are. The first
// tree's nodes keep their indices and scores; the second's others follow, each a later sibling, up
// to max_nodes below the root (those of the first count; it is never cut). A tree that repeats a
// token among siblings counts as its first. For more than two, merge what was merged.
MergedTree Merge(const TokenTree& first, const TokenTree& second, int max_nodes);

// The same of drafts without weights, as one of the first's drafter; its sources say who guessed
// what. May be larger than a target verifies, but not than kMaxDraftNodes. Where both guess a node
// its score is the better one.
Draft Merge(const Draft& first, const Draft& second);

// The levels of the tree, below its root, that agree with what was said: the tokens after the root,
// as far as they are known. decided: whether more of them could not change that.
struct Agreement {
  int32_t levels = 0;
  bool decided = false;
};
Agreement AgreesWith(const TokenTree& tree, absl::Span<const base::TokenId> said);

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_MERGE_H_
