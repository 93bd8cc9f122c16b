#ifndef SPECFABRIC_DRAFT_SPECULATION_CACHE_H_
#define SPECFABRIC_DRAFT_SPECULATION_CACHE_H_

// What a draft has computed below the last committed token of one sequence: the nodes it sent, and
// those it ran ahead of the outcome (SSD, arXiv 2603.03251). The text's growth moves the root down;
// if the new root was run, the next tree can be grown from what is here without the model. Owned by
// the session; pure.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "sampling/sampling.h"
#include "speculation/tree.h"

namespace specfabric::draft {

// A token that may follow a node, and how likely the draft took it to be when it looked.
struct Candidate {
  sampling::ScoredToken scored;
  float logprob = 0.0f;
};

// What became of the tree when the text went on.
enum class Outcome : uint8_t {
  kHit,           // the new root was run
  kNotGrown,      // it was a candidate, but was not run
  kNotCandidate,  // it was no candidate of its parent
  kNotReached,    // the parent itself was not run
};
constexpr int kOutcomes = 4;

class SpeculationCache {
 public:
  // Slots of a tree beyond the committed ones: what an ancestor mask of a draft can name.
  static constexpr int32_t kSlots = speculation::kMaxDraftNodes;
  static constexpr int kMaskWords = kSlots / 64;

  // Nothing is known below this token.
  void Reset(base::TokenId root);
  // Forgets all but the levels below the root.
  void KeepRoot();

  int size() const { return tree_.size(); }
  const speculation::TokenTree& tree() const { return tree_; }
  float path(int node) const { return nodes_[node].path; }  // log-probability from the root
  // -1 if it was not run; the root's KV is a committed slot.
  int32_t slot(int node) const { return nodes_[node].slot; }
  bool run(int node) const { return node == 0 || nodes_[node].slot >= 0; }
  int32_t slots_used() const { return slots_used_; }
  bool sent(int node) const { return nodes_[node].sent; }
  // Sets the bits of the slots of the path to `node`, whose depth this returns. The root is a
  // committed slot and has no bit.
  int32_t SeePath(int node, absl::Span<uint64_t> mask) const;
  // Best first; empty where they are not known, or must be drawn anew in each round.
  absl::Span<const Candidate> candidates(int node) const { return nodes_[node].candidates; }

  // The child of `node` with this token, or -1.
  int Child(int node, base::TokenId token) const {
    return speculation::ChildWith(tree_, node, token);
  }
  int FindOrAdd(int parent, base::TokenId token, float logprob);
  // A slot for the node, which is about to be run (again).
  int32_t TakeSlot(int node);
  void SetCandidates(int node, std::vector<Candidate> candidates) {
    nodes_[node].candidates = std::move(candidates);
  }
  // A parallel draft model's pass over a node also gives the candidates of the levels below it,
  // which are the same on all paths: levels[i] those of nodes i levels below. The first are the
  // node's own.
  using Levels = std::vector<std::vector<Candidate>>;
  void SetLevels(int node, Levels levels);
  const Levels& levels(int node) const { return nodes_[node].levels; }
  // What a drafter that reads states hands from a node that was run to those below it, [hidden].
  void SetState(int node, absl::Span<const float> state) {
    nodes_[node].state.assign(state.begin(), state.end());
  }
  absl::Span<const float> state(int node) const { return nodes_[node].state; }
  // What the drafter's confidence head says of the node's first candidate; none: it has no such
  // head.
  void SetSaid(int node, float chance) { nodes_[node].said = chance; }
  std::optional<float> said(int node) const { return nodes_[node].said; }
  void MarkSent(int node) { nodes_[node].sent = true; }
  // Moves the root down along `tokens`, the newly committed ones. Moved::slots: the slots whose KV
  // is kept, ascending; the first `committed` of them belong to the first `committed` tokens, the
  // others to the new tree. The caller moves their KV, in this order, to slots 0, 1, ...
  struct Moved {
    Outcome outcome = Outcome::kNotReached;
    int32_t committed = 0;
    std::vector<int32_t> slots = {};
  };
  Moved Follow(absl::Span<const base::TokenId> tokens);

 private:
  struct Node {
    float path = 0.0f;
    int32_t slot = -1;
    bool sent = false;
    std::vector<Candidate> candidates = {};
    Levels levels = {};             // of a parallel draft model, else empty
    std::vector<float> state = {};  // of a drafter that reads states, else empty
    std::optional<float> said = {};
  };
  static Node MovedTo(float path, Node* from);
  Outcome MissAt(int parent, base::TokenId token) const;
  void KeepBelow(int root, std::vector<int32_t>* slots);

  speculation::TokenTree tree_;
  std::vector<Node> nodes_;  // of tree_
  int32_t slots_used_ = 0;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_SPECULATION_CACHE_H_
