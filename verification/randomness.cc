#include "verification/randomness.h"

#include "base/check.h"
#include "sampling/distribution.h"

namespace specfabric::verification {

PhiloxRandomness::PhiloxRandomness(uint64_t seed, uint32_t position, uint32_t draw,
                                   speculation::TreeView tree)
    : round_{seed, position, draw}, depths_(speculation::DepthArray(tree)) {}

bool PhiloxRandomness::Accept(int node, double probability) {
  return AcceptUniform(node) < probability;
}

base::TokenId PhiloxRandomness::Sample(int node, absl::Span<const double> probs) {
  double total = 0;
  for (double prob : probs) total += prob;
  const base::TokenId token =
      sampling::TokenAt(probs, ResidualUniform(node) * total, [](double prob) { return prob; });
  SPECFABRIC_CHECK(token != base::kNoToken);
  return token;
}

}  // namespace specfabric::verification
