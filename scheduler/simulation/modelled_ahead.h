#ifndef SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_AHEAD_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_AHEAD_H_

// Drafting ahead (`--ahead=likeliest`) of one sequence whose text is modelled: which nodes below
// the last committed token a worker has run, and which it had better run next. A node is told by
// its path, a hash of the text down to it, so that what a commit leaves is known without a tree.
// Pure.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduler/simulation/modelled_text.h"

namespace specfabric::scheduler {

struct AheadCost {
  int32_t nodes = 0;            // run ahead between two commits of a sequence, at most; 0: none
  int32_t rows = 4;             // of a pass ahead, or one for each sequence that goes ahead
  double least_chance = 0.003;  // of being needed, below which a node gets no row
};

class ModelledAhead {
 public:
  // A node by its path; its children guess at `position`.
  struct Node {
    uint64_t path = 0;
    int32_t position = 0;
    double chance = 1;  // that all of its path below the root is right
  };

  // The sequence has grown to `committed` tokens: another root, and what was next is void.
  void Advance(const ModelledText& text, uint64_t sequence, int32_t committed);

  const Node& root() const { return root_; }
  static Node Child(const ModelledText& text, uint64_t sequence, const Node& parent, int index);
  bool Ran(const Node& node) const { return ran_.contains(node.path); }
  void NoteRun(const Node& node) { ran_.emplace(node.path, node.position); }

  // The tree was sent: what lies below it comes next.
  void Start(const ModelledText& text, uint64_t sequence, const AheadCost& cost, int children);
  bool any() const { return !next_.empty(); }
  double best() const { return next_.front().chance; }
  // The likeliest, which counts as run from now on.
  Node Take();
  // A pass has run it.
  void OnRun(const ModelledText& text, uint64_t sequence, const Node& node);

 private:
  // The children of a node that was run: next, or if they were run, theirs.
  void Offer(const ModelledText& text, uint64_t sequence, const Node& node);

  Node root_;
  int32_t committed_ = 0;
  std::unordered_map<uint64_t, int32_t> ran_;  // positions, by path
  std::vector<Node> next_;                     // a heap, the likeliest in front
  int32_t left_ = 0;                           // nodes that may still be run
  int children_ = 0;
  double least_chance_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_AHEAD_H_
