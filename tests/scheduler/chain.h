#ifndef SPECFABRIC_TESTS_SCHEDULER_CHAIN_H_
#define SPECFABRIC_TESTS_SCHEDULER_CHAIN_H_

#include "speculation/tree.h"

namespace specfabric::scheduler {

// A tree of so many nodes below its root, one below the other, each with this score.
inline speculation::TokenTree Chain(int nodes, float score) {
  speculation::TokenTree tree = speculation::TokenTree::Root(1);
  for (int i = 0; i < nodes; ++i) tree.Add(i, 2 + i, score);
  return tree;
}

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_TESTS_SCHEDULER_CHAIN_H_
