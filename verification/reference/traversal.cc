#include <algorithm>

#include "verification/reference/acceptance.h"
#include "verification/row_probs.h"

namespace specfabric::verification {
namespace {

// Depth-first, siblings in draw order; a node is decided after all of its children.
class Traversal {
 public:
  Traversal(const VerifyInput& input, Randomness& random) : input_(input), random_(random) {}

  speculation::Accepted Run() && {
    Visit(0, 1);
    std::reverse(path_.begin(), path_.end());
    speculation::Accepted accepted{.path = path_, .tokens = {}};
    for (int node : path_) accepted.tokens.push_back(input_.tree.tokens[node]);
    accepted.tokens.push_back(last_token_);
    return accepted;
  }

 private:
  // Whether `node` or a node below it is accepted. pi: the probability of the path from the root to
  // `node`, given the rejections so far.
  bool Visit(int node, double pi) {
    sampling::Distribution p = input_.TargetDistribution(node);
    for (int child : Children(input_.tree, node)) {
      const base::TokenId x = input_.tree.tokens[child];
      const sampling::Distribution q = input_.DraftDistribution(child);
      if (q[x] == 0) break;
      if (Visit(child, std::min(1.0, pi * p[x] / q[x]))) {
        path_.push_back(child);
        return true;
      }
      sampling::Residual residual = sampling::ResidualOf(pi, p, q);
      pi = KeptChance(pi, residual.mass);
      p = std::move(residual.distribution);
    }
    if (!random_.Accept(node, pi)) return false;
    last_token_ = random_.Sample(node, p);
    return true;
  }

  const VerifyInput& input_;
  Randomness& random_;
  std::vector<int32_t> path_;  // from the last accepted node up
  base::TokenId last_token_ = base::kNoToken;
};

}  // namespace

speculation::Accepted AcceptByTraversal(const VerifyInput& input, Randomness& random) {
  return Traversal(input, random).Run();
}

speculation::Accepted AcceptByBlock(const VerifyInput& input, Randomness& random) {
  // Node i of a chain is the i-th draft, X_i; p[i] is the paper's M_b after X_1 .. X_i, q[i] its
  // M_s there. A draft that q cannot have produced ends the chain.
  std::vector<sampling::Distribution> p = {input.TargetDistribution(0)}, q;
  std::vector<double> pi = {1};
  int gamma = 0;
  while (gamma + 1 < input.tree.size()) {
    const base::TokenId x = input.tree.tokens[gamma + 1];
    sampling::Distribution distribution = input.DraftDistribution(gamma + 1);
    if (distribution[x] == 0) break;
    pi.push_back(std::min(1.0, pi[gamma] * p[gamma][x] / distribution[x]));
    q.push_back(std::move(distribution));
    p.push_back(input.TargetDistribution(++gamma));
  }

  int tau = 0;
  for (int i = 1; i <= gamma; ++i) {
    const double h =
        i == gamma ? pi[i] : KeptChance(pi[i], sampling::ResidualOf(pi[i], p[i], q[i]).mass);
    if (random.Accept(i, h)) tau = i;
  }

  speculation::Accepted accepted;
  for (int i = 1; i <= tau; ++i) {
    accepted.path.push_back(i);
    accepted.tokens.push_back(input.tree.tokens[i]);
  }
  const sampling::Distribution distribution =
      tau == gamma ? p[tau] : sampling::ResidualOf(pi[tau], p[tau], q[tau]).distribution;
  accepted.tokens.push_back(random.Sample(tau, distribution));
  return accepted;
}

}  // namespace specfabric::verification
