#ifndef SPECFABRIC_SPECULATION_DISTRIBUTION_H_
#define SPECFABRIC_SPECULATION_DISTRIBUTION_H_

// Arithmetic on distributions over the vocabulary, in double precision.

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"

namespace specfabric::speculation {

using Distribution = std::vector<double>;  // [vocabulary], not negative, sums to 1

// weights / their sum. Weights without mass come back as they are: all zero.
inline Distribution Normalized(absl::Span<const double> weights) {
  double sum = 0;
  for (double weight : weights) sum += weight;
  Distribution result(weights.begin(), weights.end());
  if (sum > 0) {
    for (double& value : result) value /= sum;
  }
  return result;
}

// The first token at which the running sum of weights exceeds `wanted`, in [0, their sum). Rounding
// may carry it past the last: then the last token that has a weight. kNoToken: none has. `weigh`
// makes a double of an element.
template <typename T, typename Weigh>
base::TokenId TokenAt(absl::Span<const T> weights, double wanted, Weigh weigh) {
  base::TokenId token = base::kNoToken;
  double sum = 0;
  for (size_t i = 0; i < weights.size() && sum <= wanted; ++i) {
    const double weight = weigh(weights[i]);
    if (weight > 0) token = static_cast<base::TokenId>(i);
    sum += weight;
  }
  return token;
}

// What of pi * p is left above q.
struct Residual {
  double mass = 0;   // S = sum over x of (pi p(x) - q(x))+, in [0, 1]
  Distribution law;  // norm((pi p - q)+); p itself where S is 0
};
inline Residual ResidualOf(double pi, const Distribution& p, const Distribution& q) {
  Residual residual{.mass = 0, .law = Distribution(p.size(), 0.0)};
  for (size_t x = 0; x < p.size(); ++x) {
    residual.law[x] = std::max(0.0, pi * p[x] - q[x]);
    residual.mass += residual.law[x];
  }
  if (residual.mass > 0) {
    for (double& value : residual.law) value /= residual.mass;
  } else {
    residual.law = p;
  }
  return residual;
}

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_DISTRIBUTION_H_
