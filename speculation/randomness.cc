#include "speculation/randomness.h"

#include "base/check.h"
#include "speculation/distribution.h"

namespace specfabric::speculation {

PhiloxRandomness::PhiloxRandomness(uint64_t seed, uint32_t position, uint32_t draw,
                                   const TokenTree& tree)
    : round_{seed, position, draw}, depths_(Depths(tree)) {}

bool PhiloxRandomness::Accept(int node, double probability) {
  return AcceptUniform(node) < probability;
}

base::TokenId PhiloxRandomness::Sample(int node, absl::Span<const double> weights) {
  double total = 0;
  for (double weight : weights) total += weight;
  const base::TokenId token =
      TokenAt(weights, ResidualUniform(node) * total, [](double weight) { return weight; });
  SPECFABRIC_CHECK(token != base::kNoToken);
  return token;
}

}  // namespace specfabric::speculation
