#ifndef SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_AHEAD_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_AHEAD_H_

// Drafting ahead (draft::AheadPolicy::kLikeliest) for one sequence of a ModelledText: which nodes
// below the last committed token a worker has run, and which it should run next. A node is
// identified by its path, a hash of the text down to it, so that no tree has to be re-rooted at a
// commit. Pure. Owned by ModelledDraft.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduler/simulation/modelled_text.h"

namespace specfabric::scheduler {

struct AheadCost {
  int32_t nodes = 0;            // most nodes run ahead between two commits of a sequence; 0: off
  int32_t rows = 4;             // of a pass ahead; more if more sequences are drafted ahead
  double least_chance = 0.003;  // a node less likely to be needed is not run
};

class ModelledAhead {
 public:
  // A node; its children propose tokens at `position`.
  struct Node {
    uint64_t path = 0;
    int32_t position = 0;
    double chance = 1;  // that its whole path below the root is right
  };

  // The sequence has grown to `committed` tokens: sets the root, and forgets what was to be run
  // next.
  void Advance(const ModelledText& text, uint64_t sequence, int32_t committed);

  const Node& root() const { return root_; }
  static Node Child(const ModelledText& text, uint64_t sequence, const Node& parent, int index);
  bool Ran(const Node& node) const { return ran_.contains(node.path); }
  void NoteRun(const Node& node) { ran_.emplace(node.path, node.position); }

  // The tree was sent: the nodes below it are to be run next.
  void Start(const ModelledText& text, uint64_t sequence, const AheadCost& cost);
  // The same of a drafter that drafts in one pass, which is run at roots of next trees alone: first
  // Clear, then OfferRoots for each node of the tree that was sent, with its number of children
  // there. A next root is a token that the tree does not have below such a node.
  void Clear(const AheadCost& cost);
  void OfferRoots(const ModelledText& text, uint64_t sequence, const Node& parent, int children);
  bool any() const { return !next_.empty(); }
  double best() const { return next_.front().chance; }
  // Removes the likeliest node, which counts as run from now on.
  Node Take();
  // A pass has run the node: its children are to be run next.
  void OnRun(const ModelledText& text, uint64_t sequence, const Node& node);

 private:
  // Adds the children of a node that was run to those to be run next, or if they were run, theirs.
  void Offer(const ModelledText& text, uint64_t sequence, const Node& node);
  void Push(const Node& node);

  // Children of a node that may be run: as many as a draft worker keeps candidates.
  static constexpr int kCandidates = 8;

  Node root_;
  int32_t committed_ = 0;
  std::unordered_map<uint64_t, int32_t> ran_;  // positions, by path
  std::vector<Node> next_;                     // a heap, the likeliest first
  int32_t left_ = 0;                           // nodes that may still be run
  double least_chance_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_AHEAD_H_
