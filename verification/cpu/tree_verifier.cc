#include "verification/cpu/tree_verifier.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "sampling/draft_row.h"
#include "verification/row_probs.h"

namespace specfabric::verification {
namespace {

using speculation::Accepted;
using speculation::SiblingDraw;
using speculation::TokenTree;
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
        TreeVerifier* verifier)
      : round_(round), tree_(*round.tree), row_(row), random_(random), verifier_(*verifier) {}

  Accepted Reject();
  Accepted Traverse();
  Accepted AcceptTypical();

 private:
  DraftDistribution DistributionOf(int child) const;
  std::vector<base::TokenId> TakenBefore(int child) const;
  bool Accept(int node, double probability) const {
    return random_.AcceptUniform(node) < probability;
  }
  // The first accepted child of `node`, or -1. *p is the target's distribution at the node; on
  // return, the residual that the rejected children leave.
  int FirstAccepted(int node, RowDistribution* p) const;
  bool Visit(int node, int depth, double pi);
  // last: the token after the path; kNoToken: the logits there are not finite.
  Accepted Emit(absl::Span<const int32_t> path, base::TokenId last) const;

  const TreeToVerify& round_;
  const TokenTree& tree_;
  LogitRow row_;
  const PhiloxRandomness& random_;
  TreeVerifier& verifier_;

  // State of Traverse.
  std::vector<bool> has_children_;
  std::vector<int32_t> path_;  // from the last accepted node up
  base::TokenId last_token_ = base::kNoToken;
};

std::vector<base::TokenId> TreeVerifier::Round::TakenBefore(int child) const {
  std::vector<base::TokenId> taken;
  if (round_.draw != SiblingDraw::kWithoutReplacement) return taken;
  for (int earlier = 1; earlier < child; ++earlier) {
    if (tree_.parents[earlier] == tree_.parents[child] &&
        round_.draft_row[earlier] == round_.draft_row[child]) {
      taken.push_back(tree_.tokens[earlier]);
    }
  }
  std::sort(taken.begin(), taken.end());
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  return taken;
}

DraftDistribution TreeVerifier::Round::DistributionOf(int child) const {
  if (round_.draw == SiblingDraw::kDeterministic) {
    static constexpr uint16_t kOne = 0x3F80;
    return {.draft_probs = absl::MakeConstSpan(&kOne, 1),
            .ids = absl::MakeConstSpan(&tree_.tokens[child], 1),
            .taken = {},
            .total = 1};
  }
  const int32_t row = round_.draft_row[child];
  DraftDistribution distribution{.draft_probs = round_.draft_probs->probs(row),
                                 .ids = round_.draft_probs->ids(row),
                                 .taken = TakenBefore(child),
                                 .total = 0};
  distribution.total = TotalWithout(*round_.draft_probs, row, distribution.taken);
  return distribution;
}

Accepted TreeVerifier::Round::Emit(absl::Span<const int32_t> path, base::TokenId last) const {
  Accepted accepted{
      .path = {path.begin(), path.end()}, .tokens = {}, .finite = last != base::kNoToken};
  for (int32_t node : path) accepted.tokens.push_back(tree_.tokens[node]);
  if (accepted.finite) accepted.tokens.push_back(last);
  return accepted;
}

int TreeVerifier::Round::FirstAccepted(int node, RowDistribution* p) const {
  for (int child : Children(tree_, node)) {
    const base::TokenId x = tree_.tokens[child];
    const DraftDistribution q = DistributionOf(child);
    if (q.UnnormalizedProb(x) == 0) return -1;
    if (Accept(child, p->Chance(1, q, x))) return child;
    p->Subtract(1, q);
  }
  return -1;
}

Accepted TreeVerifier::Round::Reject() {
  RowDistribution& p = verifier_.DistributionAt(0);
  std::vector<int32_t> path;
  for (int node = 0;;) {
    if (!p.Open(row_(node), round_.sampling, /*keep=*/false)) return Emit(path, base::kNoToken);
    const int child = FirstAccepted(node, &p);
    if (child < 0) return Emit(path, p.Sample(random_.ResidualUniform(node)));
    path.push_back(child);
    node = child;
  }
}

// Whether `node` or a node below it is accepted. pi: the probability of the path from the root to
// `node`, given the rejections so far. Below a node whose logits are not finite nothing is
// accepted, so that these matter only if the node is the last of the path.
bool TreeVerifier::Round::Visit(int node, int depth, double pi) {
  if (pi == 0) return false;
  if (!has_children_[node] && !Accept(node, pi)) return false;
  const std::vector<int32_t> children = Children(tree_, node);
  // Visiting a child reads other rows before this one is finished.
  const bool keep =
      std::any_of(children.begin(), children.end(), [&](int c) { return has_children_[c]; });
  RowDistribution& p = verifier_.DistributionAt(depth);
  const bool finite = p.Open(row_(node), round_.sampling, keep);
  for (int child : children) {
    if (!finite) break;
    const base::TokenId x = tree_.tokens[child];
    const DraftDistribution q = DistributionOf(child);
    if (q.UnnormalizedProb(x) == 0) break;
    if (Visit(child, depth + 1, p.Chance(pi, q, x))) {
      path_.push_back(child);
      return true;
    }
    pi = KeptChance(pi, p.Subtract(pi, q));
    if (pi == 0) return false;
  }
  if (!children.empty() && !Accept(node, pi)) return false;
  if (finite) last_token_ = p.Sample(random_.ResidualUniform(node));
  return true;
}

Accepted TreeVerifier::Round::Traverse() {
  has_children_.assign(tree_.size(), false);
  for (int node = 1; node < tree_.size(); ++node) has_children_[tree_.parents[node]] = true;
  SPECFABRIC_CHECK(Visit(0, 0, 1));
  std::reverse(path_.begin(), path_.end());
  return Emit(path_, last_token_);
}

Accepted TreeVerifier::Round::AcceptTypical() {
  const std::vector<int32_t> depths = speculation::Depths(tree_);
  RowDistribution& p = verifier_.DistributionAt(0);
  std::vector<bool> typical(tree_.size(), false);  // the whole path to the node
  typical[0] = true;
  // Rows are read once, so the token after a node is drawn before the node is known to be the last.
  std::vector<base::TokenId> next(tree_.size(), base::kNoToken);
  int last = 0;
  for (int node = 0; node < tree_.size(); ++node) {
    if (!typical[node]) continue;
    if (depths[node] > depths[last]) last = node;
    const std::vector<int32_t> children = Children(tree_, node);
    if (children.empty()) continue;
    if (!p.Open(row_(node), round_.sampling, /*keep=*/false)) continue;
    next[node] = p.Sample(random_.ResidualUniform(node));
    const double bound = TypicalBound(round_.typical, p.InversePerplexity());
    for (int child : children) typical[child] = p.Probability(tree_.tokens[child]) > bound;
  }
  if (next[last] == base::kNoToken && Children(tree_, last).empty() &&
      p.Open(row_(last), round_.sampling, /*keep=*/false)) {
    next[last] = p.Sample(random_.ResidualUniform(last));
  }
  std::vector<int32_t> path;
  for (int node = last; node != 0; node = tree_.parents[node]) path.push_back(node);
  std::reverse(path.begin(), path.end());
  return Emit(path, next[last]);
}

TreeVerifier::TreeVerifier(int32_t vocabulary, base::Isa isa) : scratch_(vocabulary, isa) {}

RowDistribution& TreeVerifier::DistributionAt(int depth) {
  while (static_cast<int>(distributions_.size()) <= depth) distributions_.emplace_back(&scratch_);
  return distributions_[depth];
}

Accepted TreeVerifier::Verify(const TreeToVerify& round, LogitRow row,
                              const PhiloxRandomness& random) {
  SPECFABRIC_CHECK(round.tree->size() > 0 && round.tree->size() <= speculation::kMaxVerifyNodes);
  SPECFABRIC_CHECK(speculation::Allows(round.verification, round.draw));
  SPECFABRIC_CHECK(!speculation::NeedsDraftRows(round.verification, round.draw) ||
                   (round.draft_probs != nullptr &&
                    static_cast<int>(round.draft_row.size()) == round.tree->size()));
  Round verification(round, row, random, this);
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
  return {};
}

}  // namespace specfabric::verification
