#include "speculation/randomness.h"

#include "base/check.h"
#include "speculation/distribution.h"

namespace specfabric::speculation {

PhiloxRandomness::PhiloxRandomness(uint64_t seed, uint32_t position, uint32_t draw,
                                   const TokenTree& tree)
    : seed_(seed), position_(position), draw_(draw), depths_(Depths(tree)) {}

double PhiloxRandomness::AcceptUniform(int node) const {
  // The root is no guess: it has the position before the first that is chosen, and only traversal
  // asks for it, with certainty as the answer.
  const base::DrawSite site{.purpose = base::Purpose::kAccept,
                            .position = position_ + static_cast<uint32_t>(depths_[node]) - 1,
                            .draw = draw_,
                            .node = static_cast<uint32_t>(node)};
  return UniformFromWord(base::PhiloxWord(seed_, site, 0));
}

double PhiloxRandomness::ResidualUniform(int node) const {
  const base::DrawSite site{.purpose = base::Purpose::kResidual,
                            .position = position_ + static_cast<uint32_t>(depths_[node]),
                            .draw = draw_,
                            .node = static_cast<uint32_t>(node)};
  return UniformFromWords(base::PhiloxWord(seed_, site, 0), base::PhiloxWord(seed_, site, 1));
}

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
