#include "verification/cpu/tree_verifier.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sampling/draft_row.h"
#include "verification/row_probs.h"

namespace specfabric::verification {
namespace {

using speculation::Accepted;
using speculation::NextChild;
using speculation::SiblingDraw;
using speculation::TreeView;
using speculation::VerificationMethod;

// The sum of the row's draft_probs except those of `taken`, ascending.
double TotalWithout(const speculation::DraftProbs& draft_probs, int32_t row,
                    absl::Span<const base::TokenId> taken) {
  const absl::Span<const uint16_t> all = draft_probs.probs(row);
  const absl::Span<const base::TokenId> ids = draft_probs.ids(row);
  double taken_prob = 0;
  for (base::TokenId token : taken) taken_prob += draft_probs.prob(row, token);
  const double left = draft_probs.total(row) - taken_prob;
  // If little is left, the difference has too few significant digits.
  constexpr double kMinRemainder = 1e-3;
  if (left > kMinRemainder * draft_probs.total(row)) return left;
  double sum = 0;
  size_t begin = 0;
  for (base::TokenId token : taken) {
    size_t at = token;
    if (!ids.empty()) {
      at = std::lower_bound(ids.begin(), ids.end(), token) - ids.begin();
      if (at == ids.size() || ids[at] != token) continue;
    }
    sum += sampling::TotalProb(all.subspan(begin, at - begin));
    begin = at + 1;
  }
  return sum + sampling::TotalProb(all.subspan(begin));
}

}  // namespace

class TreeVerifier::Round {
 public:
  Round(const TreeToVerify& round, LogitRow row, const PhiloxRandomness& random,
        TreeVerifier* verifier, Accepted* accepted)
      : round_(round),
        tree_(round.tree),
        row_(row),
        random_(random),
        verifier_(*verifier),
        accepted_(*accepted) {}

  void Reject();
  void Traverse();
  void AcceptTypical();

 private:
  DraftDistribution DistributionOf(int child) const;
  // The tokens of earlier siblings from the same row that `child` cannot have drawn again,
  // ascending, each once.
  void TakenBefore(int child, TakenTokens* taken) const;
  bool Accept(int node, double probability) const {
    return random_.AcceptUniform(node) < probability;
  }
  // The first accepted child of `node`, or -1. *p is the target's distribution at the node; on
  // return, the residual that the rejected children leave.
  int FirstAccepted(int node, RowDistribution* p) const;
  bool Visit(int node, int depth, double pi);
  // The tokens of the accepted path, then `last`; kNoToken: the logits there are not finite.
  void EmitTokens(base::TokenId last);
  bool HasChildren(int node) const { return NextChild(tree_, node, node) >= 0; }

  const TreeToVerify& round_;
  const TreeView tree_;
  LogitRow row_;
  const PhiloxRandomness& random_;
  TreeVerifier& verifier_;
  Accepted& accepted_;
  base::TokenId last_token_ = base::kNoToken;  // of Traverse
};

void TreeVerifier::Round::TakenBefore(int child, TakenTokens* taken) const {
  if (round_.draw != SiblingDraw::kWithoutReplacement) return;
  for (int earlier = 1; earlier < child; ++earlier) {
    if (tree_.parents[earlier] == tree_.parents[child] &&
        round_.draft_row[earlier] == round_.draft_row[child]) {
      taken->push_back(tree_.tokens[earlier]);
    }
  }
  std::sort(taken->begin(), taken->end());
  taken->erase(std::unique(taken->begin(), taken->end()), taken->end());
}

DraftDistribution TreeVerifier::Round::DistributionOf(int child) const {
  if (round_.draw == SiblingDraw::kDeterministic) {
    static constexpr uint16_t kOne = 0x3F80;
    return {.draft_probs = absl::MakeConstSpan(&kOne, 1),
            .ids = tree_.tokens.subspan(child, 1),
            .taken = {},
            .total = 1};
  }
  const int32_t row = round_.draft_row[child];
  DraftDistribution distribution{.draft_probs = round_.draft_probs->probs(row),
                                 .ids = round_.draft_probs->ids(row),
                                 .taken = {},
                                 .total = 0};
  TakenBefore(child, &distribution.taken);
  distribution.total = TotalWithout(*round_.draft_probs, row, distribution.taken);
  return distribution;
}

void TreeVerifier::Round::EmitTokens(base::TokenId last) {
  accepted_.finite = last != base::kNoToken;
  for (int32_t node : accepted_.path) accepted_.tokens.push_back(tree_.tokens[node]);
  if (accepted_.finite) accepted_.tokens.push_back(last);
}

int TreeVerifier::Round::FirstAccepted(int node, RowDistribution* p) const {
  for (int child = NextChild(tree_, node, node); child >= 0;
       child = NextChild(tree_, node, child)) {
    const base::TokenId x = tree_.tokens[child];
    const DraftDistribution q = DistributionOf(child);
    if (q.UnnormalizedProb(x) == 0) return -1;
    if (Accept(child, p->Chance(1, q, x))) return child;
    p->Subtract(1, q);
  }
  return -1;
}

void TreeVerifier::Round::Reject() {
  RowDistribution& p = verifier_.DistributionAt(0);
  for (int node = 0;;) {
    if (!p.Open(row_(node), round_.sampling, /*keep=*/false)) return EmitTokens(base::kNoToken);
    const int child = FirstAccepted(node, &p);
    if (child < 0) return EmitTokens(p.Sample(random_.ResidualUniform(node)));
    accepted_.path.push_back(child);
    node = child;
  }
}

// Whether `node` or a node below it is accepted; the path is then appended from its end up. pi: the
// probability of the path from the root to `node`, given the rejections so far. Below a node whose
// logits are not finite nothing is accepted, so that these matter only if the node is the last of
// the path.
bool TreeVerifier::Round::Visit(int node, int depth, double pi) {
  if (pi == 0) return false;
  const int first = NextChild(tree_, node, node);
  if (first < 0 && !Accept(node, pi)) return false;
  // Visiting a child reads other rows before this one is finished.
  bool keep = false;
  for (int child = first; child >= 0 && !keep; child = NextChild(tree_, node, child)) {
    keep = HasChildren(child);
  }
  RowDistribution& p = verifier_.DistributionAt(depth);
  const bool finite = p.Open(row_(node), round_.sampling, keep);
  for (int child = first; child >= 0 && finite; child = NextChild(tree_, node, child)) {
    const base::TokenId x = tree_.tokens[child];
    const DraftDistribution q = DistributionOf(child);
    if (q.UnnormalizedProb(x) == 0) break;
    if (Visit(child, depth + 1, p.Chance(pi, q, x))) {
      accepted_.path.push_back(child);
      return true;
    }
    pi = KeptChance(pi, p.Subtract(pi, q));
    if (pi == 0) return false;
  }
  if (first >= 0 && !Accept(node, pi)) return false;
  if (finite) last_token_ = p.Sample(random_.ResidualUniform(node));
  return true;
}

void TreeVerifier::Round::Traverse() {
  SPECFABRIC_CHECK(Visit(0, 0, 1));
  std::reverse(accepted_.path.begin(), accepted_.path.end());
  EmitTokens(last_token_);
}

void TreeVerifier::Round::AcceptTypical() {
  RowDistribution& p = verifier_.DistributionAt(0);
  struct Node {
    bool typical = false;  // the whole path to the node
    int depth = 0;
    // Rows are read once: the token after a node is drawn before it is known to be the last.
    base::TokenId next = base::kNoToken;
  };
  std::array<Node, speculation::kMaxVerifyNodes> nodes;
  nodes[0].typical = true;
  int last = 0;
  for (int node = 0; node < tree_.size(); ++node) {
    if (!nodes[node].typical) continue;
    if (nodes[node].depth > nodes[last].depth) last = node;
    if (!HasChildren(node)) continue;
    if (!p.Open(row_(node), round_.sampling, /*keep=*/false)) continue;
    nodes[node].next = p.Sample(random_.ResidualUniform(node));
    const double bound = TypicalBound(round_.typical, p.InversePerplexity());
    for (int child = NextChild(tree_, node, node); child >= 0;
         child = NextChild(tree_, node, child)) {
      nodes[child].typical = p.Probability(tree_.tokens[child]) > bound;
      nodes[child].depth = nodes[node].depth + 1;
    }
  }
  if (nodes[last].next == base::kNoToken && !HasChildren(last) &&
      p.Open(row_(last), round_.sampling, /*keep=*/false)) {
    nodes[last].next = p.Sample(random_.ResidualUniform(last));
  }
  for (int node = last; node != 0; node = tree_.parents[node]) accepted_.path.push_back(node);
  std::reverse(accepted_.path.begin(), accepted_.path.end());
  EmitTokens(nodes[last].next);
}

TreeVerifier::TreeVerifier(int32_t vocabulary, base::Isa isa) : scratch_(vocabulary, isa) {}

RowDistribution& TreeVerifier::DistributionAt(int depth) {
  while (static_cast<int>(distributions_.size()) <= depth) distributions_.emplace_back(&scratch_);
  return distributions_[depth];
}

void TreeVerifier::Verify(const TreeToVerify& round, LogitRow row, const PhiloxRandomness& random,
                          Accepted* accepted) {
  SPECFABRIC_CHECK(round.tree.size() > 0 && round.tree.size() <= speculation::kMaxVerifyNodes);
  SPECFABRIC_CHECK(speculation::Allows(round.verification, round.draw));
  SPECFABRIC_CHECK(!speculation::NeedsDraftRows(round.verification, round.draw) ||
                   (round.draft_probs != nullptr &&
                    static_cast<int>(round.draft_row.size()) == round.tree.size()));
  accepted->path.clear();
  accepted->tokens.clear();
  Round verification(round, row, random, this, accepted);
  switch (round.verification) {
    case VerificationMethod::kRejection:
      return verification.Reject();
    case VerificationMethod::kTraversal:
      return verification.Traverse();
    case VerificationMethod::kTypical:
      return verification.AcceptTypical();
    case VerificationMethod::kCoupled:
      break;
  }
  SPECFABRIC_CHECK(round.verification != VerificationMethod::kCoupled);
}

}  // namespace specfabric::verification
