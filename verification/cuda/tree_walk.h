#ifndef SPECFABRIC_VERIFICATION_CUDA_TREE_WALK_H_
#define SPECFABRIC_VERIFICATION_CUDA_TREE_WALK_H_

// Coupled verification of trees on the device, given the target's choice at every node
// (verification.md section 1; speculation::WalkCoupled): follows from the root the child that is
// the choice, while there is one.

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/types.h"
#include "verification/cuda/arg_max.h"

namespace specfabric::verification::cuda {

// The trees of several sequences, concatenated, in device memory. Node n of sequence s is at
// begin[s] + n. At most 64 nodes in a tree, the root included.
struct TreeBatch {
  int32_t sequences = 0;
  const int32_t* begin = nullptr;         // [sequences + 1]
  const int32_t* parents = nullptr;       // [nodes], within the sequence; -1 of roots
  const base::TokenId* tokens = nullptr;  // [nodes]
  const uint64_t* ancestors = nullptr;    // [nodes], speculation::AncestorMasks
  const PackedChoice* choices = nullptr;  // [nodes], of EnqueueArgMax
};

// The accepted path of one tree. Bit n of `path` is set if node n is on it; the root always is.
// `last` is its deepest node, `bonus` the token chosen there, kNoToken if the logits there are not
// all finite. The tokens to emit are those of the path's nodes without the root, in ascending
// order, then `bonus`.
struct Walked {
  uint64_t path = 0;
  int32_t last = 0;
  base::TokenId bonus = base::kNoToken;
};

// Enqueues: walked[s] becomes the accepted path of tree s. walked: [sequences], device memory.
absl::Status EnqueueTreeWalk(const TreeBatch& trees, Walked* walked, base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_TREE_WALK_H_
