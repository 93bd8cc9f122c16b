#ifndef SPECFABRIC_SPECULATION_GROWTH_H_
#define SPECFABRIC_SPECULATION_GROWTH_H_

// How a draft's tree grows, level by level. Pure: the draft engine runs the model, hands the
// candidates of each expanded node to the grower, and asks which nodes to expand next.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sampling/sampling.h"
#include "speculation/tree.h"

namespace specfabric::speculation {

// Either an expansion configuration (SpecInfer's notation: "1,1,3,1,1" gives every node of depth d
// widths[d] children) or best-first growth to a node budget ("best:16", at most `max_children`
// children a node, at most `max_depth` levels).
struct GrowthPolicy {
  std::vector<int32_t> widths;  // empty: best-first
  int32_t budget = 16;          // nodes below the root, best-first only
  int32_t max_children = 4;
  int32_t max_depth = 8;

  // "1,1,3,1,1", "best:16" or "best:16:4:8" (budget, children, depth). InvalidArgument says what
  // was given and what is allowed.
  static absl::StatusOr<GrowthPolicy> Parse(std::string_view given);
  std::string ToString() const;
  // The same with at most `depth` levels, at least one.
  GrowthPolicy Shallower(int32_t depth) const;
  // Of an expansion configuration, the shape for `nodes` nodes, at least one: as deep as these
  // allow, then as wide as they allow, from the root on; they may end within the last level. A
  // level more gains more than second siblings do. Best-first growth bounds its nodes itself.
  GrowthPolicy Within(int32_t nodes) const;
  int Depth() const;                 // levels below the root, at most
  int MaxNodes() const;              // below the root
  int MaxNodesWithChildren() const;  // the root included; of an expansion configuration
};

// Grows one tree. The owner calls Frontier(), runs the model on those nodes in one batch, then
// Expand() for each, in that order, with its candidates, until Frontier() is empty. It may stop
// earlier.
//
// Best-first takes as many nodes a step as use up the budget in max_depth steps, always those with
// the highest path log-probability among all candidates seen so far. Siblings enter in the order in
// which they were drawn: the i-th drawn counts with the i-th largest log-probability of its
// siblings, since its chance of being the target's choice goes with its place in the draw.
//
// Where the verification method takes any tree, a node must pay for its row: cost_per_row is what
// the chance of its path must be, in accepted tokens. Those down to half of it are taken too, since
// the cost_per_second of the coming step is not known yet, but growth does not go on for them.
class TreeGrower {
 public:
  // max_nodes bounds the nodes below the root, whatever the policy says (the request's budget).
  TreeGrower(const GrowthPolicy& policy, base::TokenId root, int max_nodes,
             float cost_per_row = 0.0f);

  // Nodes to expand in the next step, ascending; empty when the tree is complete.
  std::vector<int32_t> Frontier() const { return frontier_; }
  bool complete() const { return frontier_.empty(); }
  // The most tokens that the next step may add to what is accepted: one below each node to expand.
  float Gain() const;
  void Stop() { frontier_.clear(); }
  // Whether Expand would add something: neither expanded nor left over when the budget ran out.
  bool Expandable(int node) const;
  // How many candidates to give for a node of this depth.
  int Width(int depth) const;
  // Adds children of `node` as far as the policy and the budget allow, in the order given. A node
  // that is not in the frontier (the budget may run out in the middle of a step) is left alone.
  // candidates[i].score: the perturbed score (order); logprobs[i]: the draft's log-probability.
  void Expand(int node, const std::vector<sampling::ScoredToken>& candidates,
              const std::vector<float>& logprobs);

  // Best-first, where some of the frontier was expanded out of turn, since its candidates were
  // known: the next best take their places, so that those left do not hold up what is likelier.
  void Refill();

  const TokenTree& tree() const { return tree_; }
  // Growth is over: best-first fills what is left of the budget with the best candidates seen that
  // pay for their row.
  void Fill();
  TokenTree Take() && {
    Fill();
    return std::move(tree_);
  }

 private:
  // Best-first: a drawn child that is not in the tree yet.
  struct Candidate {
    float path = 0.0f;  // log-probability from the root, siblings sorted
    int64_t order = 0;  // of being drawn
    int32_t parent = 0;
    base::TokenId token = base::kNoToken;
    float logprob = 0.0f;
  };
  static bool Later(const Candidate& a, const Candidate& b);

  bool best_first() const { return policy_.widths.empty(); }
  int remaining() const { return max_nodes_ - (tree_.size() - 1); }
  int AddNode(int parent, base::TokenId token, float logprob, float path);
  bool AnyToAdmit() const;
  int AdmitBest();
  void StartNextStep();

  GrowthPolicy policy_;
  int max_nodes_;
  float cost_per_row_;
  int beam_;  // best-first: nodes a step
  TokenTree tree_;
  std::vector<int32_t> depth_;
  std::vector<float> path_score_;
  std::vector<int32_t> frontier_;
  std::vector<int32_t> next_;    // nodes that the step in progress has added
  std::vector<Candidate> pool_;  // a heap with the best in front
  int64_t drawn_ = 0;
};

// The trees that one target waits for together, and whether one more pass over those that still
// grow pays: the target's step is held up until the last of them has come, so all of them are
// compared with what the others could do meanwhile. After the marginal rule for fractions
// (Dinkelbach 1967): charged at the best rate of tokens, what pays at the margin raises that rate.
class GrowthRound {
 public:
  // What is known of one more pass over the trees that still grow.
  struct Pass {
    float gain = 0;  // accepted tokens, at most
    // The chance that the next trees need a pass less if this one is left out: a drafter that
    // drafts ahead makes it up while the target verifies, and it is of use if each of the trees is
    // accepted as far as it would have gone on from.
    float spared = 1;
    void Add(const TreeGrower& tree, bool goes_ahead) {
      const float tree_gain = tree.Gain();
      gain += tree_gain;
      // Without a first level there is nothing to accept.
      spared *= goes_ahead && tree.tree().size() > 1 ? std::min(1.0f, tree_gain) : 0.0f;
    }
  };

  // A tree begins to grow; cost_per_second: accepted tokens that a second costs its sequence.
  void Join(uint64_t sequence, float cost_per_second);
  // It has been sent, or is not wanted any more. A sent tree keeps counting until its sequence
  // joins again, because the target waits for the other trees too; its cost decays with every Pays,
  // because that Join may never come.
  void Leave(uint64_t sequence, bool sent);
  // Call once before each pass: every call decays the costs of sent trees.
  bool Pays(const Pass& pass, double seconds);

 private:
  struct Member {
    float cost_per_second = 0;
    bool growing = true;
  };
  std::map<uint64_t, Member> members_;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_GROWTH_H_
