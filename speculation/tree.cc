#include "speculation/tree.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace specfabric::speculation {

int TokenTree::Add(int parent, base::TokenId token, float score) {
  assert(parent >= 0 && parent < size());
  parents.push_back(parent);
  tokens.push_back(token);
  scores.push_back(score);
  return size() - 1;
}

absl::Status Validate(const TokenTree& tree, int max_nodes, int vocabulary) {
  absl::Status structure = CheckStructure(tree);
  return structure.ok() ? CheckLimits(tree, max_nodes, vocabulary) : structure;
}

absl::Status CheckStructure(const TokenTree& tree) {
  const size_t nodes = tree.tokens.size();
  if (tree.parents.size() != nodes || tree.scores.size() != nodes) {
    return absl::InvalidArgumentError(absl::StrCat("tree has ", nodes, " tokens, ",
                                                   tree.parents.size(), " parents and ",
                                                   tree.scores.size(), " scores: must be equal"));
  }
  for (size_t node = 0; node < nodes; ++node) {
    const int32_t parent = tree.parents[node];
    const bool parent_ok =
        node == 0 ? parent == -1 : parent >= 0 && parent < static_cast<int32_t>(node);
    if (!parent_ok) {
      return absl::InvalidArgumentError(
          absl::StrCat("tree node ", node, " has parent ", parent, ": ",
                       node == 0 ? "the root's is -1" : "must be an earlier node"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const TokenTree& tree, int max_nodes, int vocabulary) {
  if (tree.size() < 1 || tree.size() > max_nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tree has ", tree.size(), " nodes: allowed are 1 to ", max_nodes));
  }
  for (int node = 0; node < tree.size(); ++node) {
    if (tree.tokens[node] < 0 || tree.tokens[node] >= vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("tree node ", node, " has token ",
                                                     tree.tokens[node], ": allowed are 0 to ",
                                                     vocabulary - 1));
    }
  }
  return absl::OkStatus();
}

std::array<uint8_t, kMaxDraftNodes> DepthArray(TreeView tree) {
  assert(tree.size() <= kMaxDraftNodes);
  std::array<uint8_t, kMaxDraftNodes> depths;
  depths[0] = 0;
  for (int node = 1; node < tree.size(); ++node) depths[node] = depths[tree.parents[node]] + 1;
  return depths;
}

int32_t DepthOf(const TokenTree& tree, int node) {
  int32_t depth = 0;
  for (int32_t a = node; a > 0; a = tree.parents[a]) ++depth;
  return depth;
}

std::vector<int32_t> Depths(const TokenTree& tree) {
  std::vector<int32_t> depths(tree.size(), 0);
  for (int node = 1; node < tree.size(); ++node) depths[node] = depths[tree.parents[node]] + 1;
  return depths;
}

std::vector<uint64_t> AncestorMasks(const TokenTree& tree) {
  assert(tree.size() <= kMaxVerifyNodes);
  std::vector<uint64_t> masks(tree.size(), 0);
  for (int node = 0; node < tree.size(); ++node) {
    const uint64_t above = node == 0 ? 0 : masks[tree.parents[node]];
    masks[node] = above | (uint64_t{1} << node);
  }
  return masks;
}

std::vector<int32_t> DraftRows(const TokenTree& tree) {
  std::vector<int32_t> row_of(tree.size(), -1);  // [nodes] the row that its children are drawn from
  for (int node = 1; node < tree.size(); ++node) row_of[tree.parents[node]] = 0;
  int32_t rows = 0;
  for (int32_t& row : row_of) {
    if (row == 0) row = rows++;
  }
  std::vector<int32_t> drawn_from(tree.size(), -1);
  for (int node = 1; node < tree.size(); ++node) drawn_from[node] = row_of[tree.parents[node]];
  return drawn_from;
}

int NodesWithChildren(const TokenTree& tree) {
  std::vector<bool> has_children(tree.size(), false);
  for (int node = 1; node < tree.size(); ++node) has_children[tree.parents[node]] = true;
  return static_cast<int>(std::count(has_children.begin(), has_children.end(), true));
}

void Keep(absl::Span<const int32_t> nodes, Draft* draft) {
  TokenTree& tree = draft->tree;
  assert(tree.size() <= kMaxDraftNodes);
  std::array<int32_t, kMaxDraftNodes> moved;  // [nodes] the new index of a kept node
  moved[0] = 0;
  int32_t size = 1;
  for (int32_t node : nodes) {
    moved[node] = size;
    tree.parents[size] = moved[tree.parents[node]];
    tree.tokens[size] = tree.tokens[node];
    tree.scores[size] = tree.scores[node];
    if (!draft->draft_row.empty()) draft->draft_row[size] = draft->draft_row[node];
    if (!draft->sources.empty()) draft->sources[size] = draft->sources[node];
    ++size;
  }
  tree.parents.resize(size);
  tree.tokens.resize(size);
  tree.scores.resize(size);
  if (!draft->draft_row.empty()) draft->draft_row.resize(size);
  if (!draft->sources.empty()) draft->sources.resize(size);
}

Draft Prune(Draft draft, int max_depth, int max_nodes) {
  const auto depths = DepthArray(draft.tree);
  std::array<int32_t, kMaxDraftNodes> kept;
  int count = 0;
  for (int node = 1; node < draft.tree.size() && count < max_nodes; ++node) {
    if (depths[node] <= max_depth) kept[count++] = node;
  }
  Keep(absl::MakeConstSpan(kept.data(), count), &draft);
  return draft;
}

int ChildWith(TreeView tree, int node, base::TokenId token) {
  for (int child = node + 1; child < tree.size(); ++child) {
    if (tree.parents[child] == node && tree.tokens[child] == token) return child;
  }
  return -1;
}

Accepted WalkCoupled(TreeView tree, const std::vector<base::TokenId>& chosen) {
  assert(static_cast<int>(chosen.size()) == tree.size());
  Accepted accepted;
  WalkChosen(
      tree, [&](int node) { return chosen[node]; }, &accepted);
  return accepted;
}

}  // namespace specfabric::speculation
