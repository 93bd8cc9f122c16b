#ifndef SPECFABRIC_SPECULATION_TREE_VIEW_H_
#define SPECFABRIC_SPECULATION_TREE_VIEW_H_

// A token tree where it lies: a TokenTree, or the rows of a step's plan that verify one. What
// verification reads of a tree; the arrays must outlive it.

#include <cstdint>

#include "absl/types/span.h"
#include "base/types.h"

namespace specfabric::speculation {

// As TokenTree: parents precede children, siblings stand in draw order.
struct TreeView {
  absl::Span<const int32_t> parents;       // [nodes], parents[0] = -1
  absl::Span<const base::TokenId> tokens;  // [nodes]

  int size() const { return static_cast<int>(tokens.size()); }
  // The tree without the nodes below the root.
  TreeView Root() const { return {parents.first(1), tokens.first(1)}; }
};

// The next child of `node` after `child`, in draw order, or -1. The first: NextChild(tree, node,
// node).
inline int NextChild(TreeView tree, int node, int child) {
  for (int next = child + 1; next < tree.size(); ++next) {
    if (tree.parents[next] == node) return next;
  }
  return -1;
}

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_TREE_VIEW_H_
