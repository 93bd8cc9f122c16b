#include <algorithm>
#include <cmath>

#include "verification/reference/acceptance.h"

namespace specfabric::verification {
namespace {

double Entropy(const sampling::Distribution& p) {
  double entropy = 0;
  for (double value : p) {
    if (value > 0) entropy -= value * std::log(value);
  }
  return entropy;
}

}  // namespace

speculation::Accepted AcceptTypical(const VerifyInput& input, const TypicalOptions& options,
                                    Randomness& random) {
  const speculation::TokenTree& tree = input.tree;
  const std::vector<int32_t> depths = speculation::Depths(tree);
  std::vector<bool> typical(tree.size(), false);  // the whole path to the node
  typical[0] = true;
  int last = 0;
  for (int node = 1; node < tree.size(); ++node) {
    if (!typical[tree.parents[node]]) continue;
    const sampling::Distribution p = input.TargetDistribution(tree.parents[node]);
    const double bound = std::min(options.epsilon, options.delta * std::exp(-Entropy(p)));
    typical[node] = p[tree.tokens[node]] > bound;
    if (typical[node] && depths[node] > depths[last]) last = node;
  }

  speculation::Accepted accepted;
  for (int node = last; node != 0; node = tree.parents[node]) accepted.path.push_back(node);
  std::reverse(accepted.path.begin(), accepted.path.end());
  for (int node : accepted.path) accepted.tokens.push_back(tree.tokens[node]);
  accepted.tokens.push_back(random.Sample(last, input.TargetDistribution(last)));
  return accepted;
}

}  // namespace specfabric::verification
