#ifndef SPECFABRIC_SPECULATION_TREE_H_
#define SPECFABRIC_SPECULATION_TREE_H_

// A token tree: the draft tokens that a draft proposes below the last committed token.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "speculation/tree_view.h"
#include "speculation/verification_method.h"

namespace specfabric::speculation {

// The largest tree that a target verifies for one sequence, root included: its ancestor mask is one
// 64-bit word.
constexpr int kMaxVerifyNodes = 64;
// The largest tree that a draft grows for one sequence, root included: four words.
constexpr int kMaxDraftNodes = 256;

// Node 0 is the root, the last committed token, whose KV is not written yet. Parents precede
// children. Siblings are in the order in which the draft drew them and are never re-ordered
// (verification.md section 3, Trimming). The three arrays have the same length.
//
// One type from the codec of DraftReply to the step plan: the codec checks the structure, the
// target then only what depends on its request (CheckLimits), and nothing checks a tree again.
struct TokenTree {
  std::vector<int32_t> parents;       // [nodes], parents[0] = -1
  std::vector<base::TokenId> tokens;  // [nodes]
  std::vector<float> scores;          // [nodes], draft log-probability of the node given its
                                      // parent (0 for the root); only used for estimates
  int size() const { return static_cast<int>(tokens.size()); }
  // Implicit, as from std::string to std::string_view. NOLINTNEXTLINE(google-explicit-constructor)
  operator TreeView() const { return {parents, tokens}; }

  static TokenTree Root(base::TokenId token) { return {{-1}, {token}, {0.0f}}; }
  // Appends a node and returns its index.
  int Add(int parent, base::TokenId token, float score);
};

// OK if the arrays agree in length, node 0 is the only root and parents precede children.
absl::Status CheckStructure(const TokenTree& tree);
// OK if the tree has 1 to `max_nodes` nodes, with tokens in [0, vocabulary).
absl::Status CheckLimits(const TokenTree& tree, int max_nodes, int vocabulary);
// Both.
absl::Status Validate(const TokenTree& tree, int max_nodes, int vocabulary);

// The depth of one node; the root's is 0.
int32_t DepthOf(const TokenTree& tree, int node);
// The depth of every node.
std::vector<int32_t> Depths(const TokenTree& tree);
// The same without an allocation, of a tree that a draft could grow; [tree.size()] are set.
std::array<uint8_t, kMaxDraftNodes> DepthArray(TreeView tree);

// Bit j of word [i] is set if node j is node i or one of its ancestors. At most 64 nodes.
std::vector<uint64_t> AncestorMasks(const TokenTree& tree);

// The most drafters (draft models) that a target uses at once.
constexpr int kMaxDrafters = 8;

// Who proposed a node: one drafter alone, the n-gram lookup in the sequence's own text
// (ngram_lookup.h) alone, several of them, or the request's grammar, which forces the token.
enum class ProposalSource : uint8_t { kDrafter = 0, kNgramLookup = 1, kSeveral = 2, kGrammar = 3 };
constexpr int kProposalSources = 4;
struct Source {
  uint8_t drafter = 0;  // the first drafter that proposed it; 0 if none did
  ProposalSource proposed_by = ProposalSource::kDrafter;
  bool from_ngram_lookup = false;  // the n-gram lookup proposed it, alone or among several
};

// What a target verifies for one sequence in one round: the draft tokens, and how they were drawn.
struct Draft {
  TokenTree tree;
  SiblingDraw draw = SiblingDraw::kCoupledTopK;
  // [nodes] the row of draft probabilities that the node was drawn from (the root's entry is not
  // read); empty where the verification method needs none.
  std::vector<int32_t> draft_row = {};
  // The drafter's index, 0 to kMaxDrafters - 1, and the source of each node, [nodes]; empty: all
  // nodes are that drafter's. Only used for estimates and counters.
  uint8_t drafter = 0;
  std::vector<Source> sources = {};

  Source source(int node) const { return sources.empty() ? Source{drafter} : sources[node]; }
};

// The draft_row of a tree as the draft sent it: each node with children has a row, in ascending
// order of these nodes.
std::vector<int32_t> DraftRows(const TokenTree& tree);
int NodesWithChildren(const TokenTree& tree);

// Drops all nodes below the root but `nodes`: ascending, each with its parent unless that is the
// root. In place.
void Keep(absl::Span<const int32_t> nodes, Draft* draft);

// Keeps the first max_nodes nodes below the root that are at most max_depth deep. Which ones
// follows from the tree's shape alone, not from tokens or scores (verification.md section 3,
// Trimming). A kept node's parent is kept.
Draft Prune(Draft draft, int max_depth, int max_nodes);

// The child of `node` that carries `token`, or -1. If siblings repeat a token, the first drawn.
int ChildWith(TreeView tree, int node, base::TokenId token);

// The verify result of one tree: the accepted nodes below the root, in path order, and the tokens
// to emit: one for each accepted node, then the bonus token.
struct Accepted {
  std::vector<int32_t> path;          // [k] node indices, root excluded
  std::vector<base::TokenId> tokens;  // [k + 1]; [k] where not `finite`
  // Whether all logits after the path are finite; if not, no bonus token is chosen.
  bool finite = true;
};

// Coupled verification (verification.md section 1): descend while a child carries the target's own
// choice, then emit the choice as the bonus token. choose(node): that choice, negative where the
// node's logits are not finite; called for the nodes on the way alone. *accepted keeps its memory.
template <typename Choose>
void WalkChosen(TreeView tree, Choose choose, Accepted* accepted) {
  accepted->path.clear();
  accepted->tokens.clear();
  for (int node = 0;;) {
    const base::TokenId token = choose(node);
    accepted->finite = token >= 0;
    if (!accepted->finite) return;
    accepted->tokens.push_back(token);
    node = ChildWith(tree, node, token);
    if (node < 0) return;
    accepted->path.push_back(node);
  }
}

// The same, given the choice at every node: chosen: [tree.size()].
Accepted WalkCoupled(TreeView tree, const std::vector<base::TokenId>& chosen);

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_TREE_H_
