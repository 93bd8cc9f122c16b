#include "target/tree_verifier.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "speculation/proposal.h"
#include "speculation/row_weights.h"

namespace specfabric::target {
namespace {

using speculation::Accepted;
using speculation::Coupling;
using speculation::SiblingDraw;
using speculation::TokenTree;

// The sum of the row's weights except those of `taken`, ascending.
double TotalWithout(const schemas::DraftWeights& weights, int32_t row,
                    absl::Span<const base::TokenId> taken) {
  const absl::Span<const uint16_t> all = weights.weights(row);
  const absl::Span<const base::TokenId> ids = weights.ids(row);
  double taken_weight = 0;
  for (base::TokenId token : taken) taken_weight += weights.weight(row, token);
  const double left = weights.total(row) - taken_weight;
  // Where little is left the difference has lost its digits.
  constexpr double kLittle = 1e-3;
  if (left > kLittle * weights.total(row)) return left;
  double sum = 0;
  size_t begin = 0;
  for (base::TokenId token : taken) {
    size_t at = token;
    if (!ids.empty()) {
      at = std::lower_bound(ids.begin(), ids.end(), token) - ids.begin();
      if (at == ids.size() || ids[at] != token) continue;
    }
    sum += speculation::TotalWeight(all.subspan(begin, at - begin));
    begin = at + 1;
  }
  return sum + speculation::TotalWeight(all.subspan(begin));
}

}  // namespace

class TreeVerifier::Round {
 public:
  Round(const TreeToVerify& round, LogitRow row, const speculation::PhiloxRandomness& random,
        TreeVerifier* verifier)
      : round_(round), tree_(*round.tree), row_(row), random_(random), verifier_(*verifier) {}

  Accepted Reject();
  Accepted Traverse();
  Accepted AcceptTypical();

 private:
  DraftLaw LawOf(int child) const;
  std::vector<base::TokenId> TakenBefore(int child) const;
  bool Accept(int node, double probability) const {
    return random_.AcceptUniform(node) < probability;
  }
  // The first child of `node` that is accepted, or -1. *p is the target's law at the node, and
  // afterwards what the rejected ones have left of it.
  int FirstAccepted(int node, RowLaw* p) const;
  bool Visit(int node, int depth, double pi);
  // `last` follows the path; kNoToken: the logits there are not finite.
  Accepted Emit(absl::Span<const int32_t> path, base::TokenId last) const;

  const TreeToVerify& round_;
  const TokenTree& tree_;
  LogitRow row_;
  const speculation::PhiloxRandomness& random_;
  TreeVerifier& verifier_;

  // Of Traverse.
  std::vector<bool> has_children_;
  std::vector<int32_t> path_;  // from the last accepted node up
  base::TokenId last_token_ = base::kNoToken;
};

std::vector<base::TokenId> TreeVerifier::Round::TakenBefore(int child) const {
  std::vector<base::TokenId> taken;
  if (round_.draw != SiblingDraw::kWithoutReplacement) return taken;
  for (int earlier = 1; earlier < child; ++earlier) {
    if (tree_.parents[earlier] == tree_.parents[child] &&
        round_.weight_row[earlier] == round_.weight_row[child]) {
      taken.push_back(tree_.tokens[earlier]);
    }
  }
  std::sort(taken.begin(), taken.end());
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  return taken;
}

DraftLaw TreeVerifier::Round::LawOf(int child) const {
  if (round_.draw == SiblingDraw::kDeterministic) {
    static constexpr uint16_t kOne = 0x3F80;
    return {.weights = absl::MakeConstSpan(&kOne, 1),
            .ids = absl::MakeConstSpan(&tree_.tokens[child], 1),
            .taken = {},
            .total = 1};
  }
  const int32_t row = round_.weight_row[child];
  DraftLaw law{.weights = round_.weights->weights(row),
               .ids = round_.weights->ids(row),
               .taken = TakenBefore(child),
               .total = 0};
  law.total = TotalWithout(*round_.weights, row, law.taken);
  return law;
}

Accepted TreeVerifier::Round::Emit(absl::Span<const int32_t> path, base::TokenId last) const {
  Accepted accepted{
      .path = {path.begin(), path.end()}, .tokens = {}, .finite = last != base::kNoToken};
  for (int32_t node : path) accepted.tokens.push_back(tree_.tokens[node]);
  if (accepted.finite) accepted.tokens.push_back(last);
  return accepted;
}

int TreeVerifier::Round::FirstAccepted(int node, RowLaw* p) const {
  for (int child : speculation::Children(tree_, node)) {
    const base::TokenId x = tree_.tokens[child];
    const DraftLaw q = LawOf(child);
    if (q.Weight(x) == 0) return -1;
    if (Accept(child, p->Chance(1, q, x))) return child;
    p->Subtract(1, q);
  }
  return -1;
}

Accepted TreeVerifier::Round::Reject() {
  RowLaw& p = verifier_.Law(0);
  std::vector<int32_t> path;
  for (int node = 0;;) {
    if (!p.Open(row_(node), round_.sampling, /*keep=*/false)) return Emit(path, base::kNoToken);
    const int child = FirstAccepted(node, &p);
    if (child < 0) return Emit(path, p.Sample(random_.ResidualUniform(node)));
    path.push_back(child);
    node = child;
  }
}

// Whether `node` or a node below it is accepted. pi: the chance of the path from the root to
// `node`, given what has been rejected so far. Below a node whose logits are not finite nothing is
// accepted, so that they count only if the node is the last of the path.
bool TreeVerifier::Round::Visit(int node, int depth, double pi) {
  if (pi == 0) return false;
  if (!has_children_[node] && !Accept(node, pi)) return false;
  const std::vector<int32_t> children = speculation::Children(tree_, node);
  // Below a child other rows are read before this one is done with.
  const bool keep =
      std::any_of(children.begin(), children.end(), [&](int c) { return has_children_[c]; });
  RowLaw& p = verifier_.Law(depth);
  const bool finite = p.Open(row_(node), round_.sampling, keep);
  for (int child : children) {
    if (!finite) break;
    const base::TokenId x = tree_.tokens[child];
    const DraftLaw q = LawOf(child);
    if (q.Weight(x) == 0) break;
    if (Visit(child, depth + 1, p.Chance(pi, q, x))) {
      path_.push_back(child);
      return true;
    }
    pi = speculation::KeptChance(pi, p.Subtract(pi, q));
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
  RowLaw& p = verifier_.Law(0);
  std::vector<bool> typical(tree_.size(), false);  // the whole path to the node
  typical[0] = true;
  // Rows are read once, so that the token after a node is drawn before it is known to be the last.
  std::vector<base::TokenId> next(tree_.size(), base::kNoToken);
  int last = 0;
  for (int node = 0; node < tree_.size(); ++node) {
    if (!typical[node]) continue;
    if (depths[node] > depths[last]) last = node;
    const std::vector<int32_t> children = speculation::Children(tree_, node);
    if (children.empty()) continue;
    if (!p.Open(row_(node), round_.sampling, /*keep=*/false)) continue;
    next[node] = p.Sample(random_.ResidualUniform(node));
    const double bound = speculation::TypicalBound(round_.typical, p.InversePerplexity());
    for (int child : children) typical[child] = p.Probability(tree_.tokens[child]) > bound;
  }
  if (next[last] == base::kNoToken && speculation::Children(tree_, last).empty() &&
      p.Open(row_(last), round_.sampling, /*keep=*/false)) {
    next[last] = p.Sample(random_.ResidualUniform(last));
  }
  std::vector<int32_t> path;
  for (int node = last; node != 0; node = tree_.parents[node]) path.push_back(node);
  std::reverse(path.begin(), path.end());
  return Emit(path, next[last]);
}

TreeVerifier::TreeVerifier(int32_t vocabulary, base::Isa isa) : scratch_(vocabulary, isa) {}

RowLaw& TreeVerifier::Law(int depth) {
  while (static_cast<int>(laws_.size()) <= depth) laws_.emplace_back(&scratch_);
  return laws_[depth];
}

Accepted TreeVerifier::Verify(const TreeToVerify& round, LogitRow row,
                              const speculation::PhiloxRandomness& random) {
  SPECFABRIC_CHECK(round.tree->size() > 0 && round.tree->size() <= speculation::kMaxVerifyNodes);
  SPECFABRIC_CHECK(speculation::Allows(round.coupling, round.draw));
  SPECFABRIC_CHECK(!speculation::NeedsDraftRows(round.coupling, round.draw) ||
                   (round.weights != nullptr &&
                    static_cast<int>(round.weight_row.size()) == round.tree->size()));
  Round verification(round, row, random, this);
  switch (round.coupling) {
    case Coupling::kRejection:
      return verification.Reject();
    case Coupling::kTraversal:
      return verification.Traverse();
    case Coupling::kTypical:
      return verification.AcceptTypical();
    case Coupling::kCoupled:
      break;
  }
  SPECFABRIC_CHECK(round.coupling != Coupling::kCoupled);
  return {};
}

}  // namespace specfabric::target
