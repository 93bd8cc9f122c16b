#include "base/cuda/launch.h"
#include "base/cuda/tensor_core.h"
#include "speculation/tree.h"
#include "verification/cuda/tree_walk.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::Launch;
using base::cuda::Stream;

constexpr int kNodes = speculation::kMaxVerifyNodes;  // one thread each

// A node is chosen if its token is its parent's choice, and no earlier sibling's is; it is on the
// path if all its ancestors are chosen too.
__global__ __launch_bounds__(kNodes) void Walk(TreeBatch trees, Walked* walked) {
  base::cuda::AwaitInputs();
  const int begin = trees.begin[blockIdx.x];
  const int nodes = trees.begin[blockIdx.x + 1] - begin;
  const int node = static_cast<int>(threadIdx.x);
  __shared__ unsigned long long chosen, path;
  if (node == 0) chosen = path = 1;  // the root
  __syncthreads();
  if (node > 0 && node < nodes) {
    const int parent = trees.parents[begin + node];
    const base::TokenId token = trees.tokens[begin + node];
    const PackedChoice choice = trees.choices[begin + parent];
    bool is_chosen = IsFinite(choice) && token == TokenOf(choice);
    for (int other = 1; other < node && is_chosen; ++other) {
      is_chosen = trees.parents[begin + other] != parent || trees.tokens[begin + other] != token;
    }
    if (is_chosen) atomicOr(&chosen, 1ULL << node);
  }
  __syncthreads();
  if (node < nodes && (trees.ancestors[begin + node] & ~chosen) == 0) {
    atomicOr(&path, 1ULL << node);
  }
  __syncthreads();
  if (node != 0) return;
  const int last = 63 - __clzll(static_cast<long long>(path));  // parents precede children
  const PackedChoice bonus = trees.choices[begin + last];
  walked[blockIdx.x] = {path, last, IsFinite(bonus) ? TokenOf(bonus) : base::kNoToken};
}

}  // namespace

absl::Status EnqueueTreeWalk(const TreeBatch& trees, Walked* walked, Stream stream) {
  if (trees.sequences < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a walk of ", trees.sequences, " trees: allowed are 1 and more"));
  }
  return Launch("tree walk", Walk, dim3(trees.sequences), dim3(kNodes), {.overlaps = true}, stream,
                trees, walked);
}

}  // namespace specfabric::verification::cuda
