#include <algorithm>

#include "verification/reference/acceptance.h"

namespace specfabric::verification {
namespace {

// The first accepted child of `node`, or -1. *p is the target's distribution at the node; on
// return, the residual that the rejected siblings leave.
int FirstAcceptedChild(const VerifyInput& input, int node, sampling::Distribution* p,
                       Randomness& random) {
  for (int child : Children(input.tree, node)) {
    const base::TokenId x = input.tree.tokens[child];
    const sampling::Distribution q = input.DraftDistribution(child);
    if (q[x] == 0) return -1;
    if (random.Accept(child, std::min(1.0, (*p)[x] / q[x]))) return child;
    *p = sampling::ResidualOf(1, *p, q).distribution;
  }
  return -1;
}

}  // namespace

speculation::Accepted AcceptByRejection(const VerifyInput& input, Randomness& random) {
  speculation::Accepted accepted;
  int node = 0;
  for (;;) {
    sampling::Distribution p = input.TargetDistribution(node);
    const int child = FirstAcceptedChild(input, node, &p, random);
    if (child < 0) {
      accepted.tokens.push_back(random.Sample(node, p));
      return accepted;
    }
    accepted.path.push_back(child);
    accepted.tokens.push_back(input.tree.tokens[child]);
    node = child;
  }
}

}  // namespace specfabric::verification
