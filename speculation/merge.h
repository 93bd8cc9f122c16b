#ifndef SPECFABRIC_SPECULATION_MERGE_H_
#define SPECFABRIC_SPECULATION_MERGE_H_

// Merges the token trees of several drafters into one (SpecInfer, arXiv 2305.09781): draft tokens
// with the same path become one node.
//
// Only for verification methods that may verify any tree: kCoupled and kTypical. The methods that
// read draft probabilities verify one drafter's tree in a round: dropping a sibling because another
// drafter drew it too would change the output distribution (verification.md section 3, Trimming),
// and each sibling would have to name its own row of q.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::speculation {

constexpr bool Merges(VerificationMethod verification) { return !UsesDraftProbs(verification); }

struct MergedTree {
  TokenTree tree;
  int32_t first_size = 0;          // nodes of the first tree, which are the first of `tree`
  std::vector<int32_t> of_second;  // [nodes]: the same node in the second tree, or -1
  // The same node in the first tree, or -1.
  int32_t of_first(int32_t node) const { return node < first_size ? node : -1; }
};

// The union of two trees with the same root token: nodes are the same if their paths are. The first
// tree's nodes keep their indices and scores; the second's others are appended, each as a later
// sibling, up to max_nodes below the root (the first tree's count, and are never dropped). Of
// siblings that repeat a token, the first is meant. To merge more than two, merge the result. Give
// the first tree away (std::move), and nothing of it is copied.
MergedTree Merge(TokenTree first, const TokenTree& second, int max_nodes);

// Merges two drafts without draft probabilities; the result is of the first's drafter, and its
// sources say who proposed which node. It may be larger than a target verifies, but not than
// kMaxDraftNodes. A node that both proposed gets the higher of the two scores.
Draft Merge(Draft first, const Draft& second);

// The number of levels of the tree, below its root, that agree with `text`, the committed tokens
// after the root. decided: whether further tokens cannot change that number.
struct Agreement {
  int32_t levels = 0;
  bool decided = false;
};
Agreement AgreesWith(const TokenTree& tree, absl::Span<const base::TokenId> text);

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_MERGE_H_
