#include <algorithm>

#include "speculation/acceptance.h"

namespace specfabric::speculation {
namespace {

// The first sibling under `node` that is accepted, or -1. *p is the target's law at the node, and
// afterwards what the rejected siblings have left of it.
int FirstAcceptedChild(const VerifyInput& input, int node, Distribution* p, Randomness& random) {
  for (int child : Children(input.tree, node)) {
    const base::TokenId x = input.tree.tokens[child];
    const Distribution q = input.DraftLaw(child);
    if (q[x] == 0) return -1;
    if (random.Accept(child, std::min(1.0, (*p)[x] / q[x]))) return child;
    *p = ResidualOf(1, *p, q).law;
  }
  return -1;
}

}  // namespace

Accepted AcceptByRejection(const VerifyInput& input, Randomness& random) {
  Accepted accepted;
  int node = 0;
  for (;;) {
    Distribution p = input.TargetLaw(node);
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

}  // namespace specfabric::speculation
