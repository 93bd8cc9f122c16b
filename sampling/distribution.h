#ifndef SPECFABRIC_SAMPLING_DISTRIBUTION_H_
#define SPECFABRIC_SAMPLING_DISTRIBUTION_H_

// Arithmetic on distributions over the vocabulary, in double precision.

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"

namespace specfabric::sampling {

using Distribution = std::vector<double>;  // [vocabulary], not negative, sums to 1

// probs divided by their sum; all 0 if the sum is 0.
inline Distribution Normalized(absl::Span<const double> probs) {
  double sum = 0;
  for (double prob : probs) sum += prob;
  Distribution result(probs.begin(), probs.end());
  if (sum > 0) {
    for (double& value : result) value /= sum;
  }
  return result;
}

// The first token at which the running sum of probs exceeds `wanted`, in [0, sum of probs). If
// rounding carries `wanted` past the end, the last token of positive probability; kNoToken if there
// is none. `prob_of` converts an element to double.
template <typename T, typename Prob>
base::TokenId TokenAt(absl::Span<const T> probs, double wanted, Prob prob_of) {
  base::TokenId token = base::kNoToken;
  double sum = 0;
  for (size_t i = 0; i < probs.size() && sum <= wanted; ++i) {
    const double prob = prob_of(probs[i]);
    if (prob > 0) token = static_cast<base::TokenId>(i);
    sum += prob;
  }
  return token;
}

// The residual distribution after a rejection with path probability pi.
struct Residual {
  double mass = 0;            // S = sum over x of (pi p(x) - q(x))+, in [0, 1]
  Distribution distribution;  // norm((pi p - q)+); p itself where S is 0
};
inline Residual ResidualOf(double pi, const Distribution& p, const Distribution& q) {
  Residual residual{.mass = 0, .distribution = Distribution(p.size(), 0.0)};
  for (size_t x = 0; x < p.size(); ++x) {
    residual.distribution[x] = std::max(0.0, pi * p[x] - q[x]);
    residual.mass += residual.distribution[x];
  }
  if (residual.mass > 0) {
    for (double& value : residual.distribution) value /= residual.mass;
  } else {
    residual.distribution = p;
  }
  return residual;
}

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_DISTRIBUTION_H_
