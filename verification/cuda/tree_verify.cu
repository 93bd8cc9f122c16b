#include "verification/cuda/tree_verify.h"

#include <algorithm>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "speculation/tree.h"
#include "verification/cuda/draft_rows.h"
#include "verification/cuda/node_distribution.h"
#include "verification/cuda/row_distribution.h"
#include "verification/randomness.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::OfFirst;
using base::cuda::Stream;
using base::cuda::Thread;
using base::cuda::Threads;

using speculation::SiblingDraw;
using speculation::VerificationMethod;

constexpr int kNodes = speculation::kMaxVerifyNodes;
// A block has this many at most, so that a thread may have 128 registers.
constexpr int kMostWarps = 16;

// One tree's round, on which all threads of a block work together: they take the same steps and
// share the work on a row. Nodes are numbered within the tree.
class Round {
 public:
  // In shared memory.
  struct Shared {
    int32_t parents[kNodes];
    base::TokenId tokens[kNodes];
    int32_t depths[kNodes];
    bool has_children[kNodes];
    double pi[kNodes];  // of Traverse: when it went on below a node
    base::TokenId taken[kNodes];
    int taken_count;
    unsigned long long
        typical;  // of AcceptTypical: nodes typical under their parent's distribution
  };

  __device__ Round(const RoundBatch& batch, const RowDistributions& distributions, int32_t sequence,
                   Shared* shared)
      : batch_(batch),
        distributions_(distributions),
        round_(batch.rounds[sequence]),
        begin_(batch.trees.begin[sequence]),
        nodes_(batch.trees.begin[sequence + 1] - begin_),
        spare_sums_(distributions.spare_sums + int64_t{sequence} * distributions.chunks),
        shared_(*shared) {}

  __device__ Walked Verify();

 private:
  __device__ void ReadTree();
  // The next child of `node` after `child`, the first one if `child` is `node` itself; -1: none.
  __device__ int NextChild(int node, int child) const {
    for (++child; child < nodes_; ++child) {
      if (shared_.parents[child] == node) return child;
    }
    return -1;
  }
  __device__ NodeDistribution DistributionAt(int node) const {
    return NodeDistribution(distributions_, batch_.vocabulary, begin_ + node, spare_sums_);
  }
  // Whether the target's logits at the node are all finite; if not, nothing below it is accepted.
  __device__ bool Finite(int node) const {
    return distributions_.filters.of_node[begin_ + node].finite();
  }
  __device__ bool Accept(int node, double probability) const {
    return verification::AcceptUniform(round_.site, node, shared_.depths[node]) < probability;
  }

  // The distribution that the draft drew `child` from, given the siblings before it. Called by all
  // threads together, which must be done with the previous one.
  __device__ NodeDraft DraftOf(int child);
  __device__ TakenTokens TakenBefore(int child);

  // The last accepted node.
  __device__ int Reject();
  __device__ int FirstAccepted(int node);
  __device__ int Traverse();
  __device__ int AcceptTypical();

  const RoundBatch& batch_;
  const RowDistributions& distributions_;
  const TreeRound& round_;
  const int32_t begin_, nodes_;
  double* const spare_sums_;
  Shared& shared_;
};

__device__ void Round::ReadTree() {
  for (int node = Thread(); node < nodes_; node += Threads()) {
    shared_.parents[node] = batch_.trees.parents[begin_ + node];
    shared_.tokens[node] = batch_.trees.tokens[begin_ + node];
    shared_.has_children[node] = false;
  }
  if (Thread() == 0) shared_.typical = 1;  // the root
  __syncthreads();
  for (int node = Thread(); node < nodes_; node += Threads()) {
    int32_t depth = 0;
    for (int above = node; above != 0; above = shared_.parents[above]) ++depth;
    shared_.depths[node] = depth;
    if (node != 0) shared_.has_children[shared_.parents[node]] = true;
  }
  __syncthreads();
}

__device__ TakenTokens Round::TakenBefore(int child) {
  if (round_.draw != SiblingDraw::kWithoutReplacement) return {};
  __syncthreads();  // the previous list may still be read
  if (Thread() == 0) {
    int count = 0;
    const int32_t* const rows = batch_.draft_row + begin_;
    for (int earlier = 1; earlier < child; ++earlier) {
      const bool same =
          shared_.parents[earlier] == shared_.parents[child] && rows[earlier] == rows[child];
      if (!same) continue;
      const base::TokenId token = shared_.tokens[earlier];
      int at = count;
      while (at > 0 && shared_.taken[at - 1] > token) --at;
      if (at > 0 && shared_.taken[at - 1] == token) continue;
      for (int i = count++; i > at; --i) shared_.taken[i] = shared_.taken[i - 1];
      shared_.taken[at] = token;
    }
    shared_.taken_count = count;
  }
  __syncthreads();
  return {shared_.taken, shared_.taken_count};
}

__device__ NodeDraft Round::DraftOf(int child) {
  if (round_.draw == SiblingDraw::kDeterministic) {
    return {.ids = &shared_.tokens[child], .entries = 1, .total = 1};
  }
  const int32_t row = batch_.draft_row[begin_ + child];
  const DraftRowLayout layout = {batch_.vocabulary, round_.entries};
  const uint8_t* const place = round_.draft_probs + row * layout.row_bytes();
  NodeDraft draft = {
      .draft_probs = reinterpret_cast<const uint16_t*>(place + layout.id_bytes()),
      .ids = layout.whole() ? nullptr : reinterpret_cast<const base::TokenId*>(place),
      .entries = round_.entries,
      .taken = TakenBefore(child)};
  draft.total = draft.TotalWithoutTaken(round_.totals[row]);
  return draft;
}

// The first accepted child of `node`, or -1. The residual that the rejected children leave replaces
// the target's distribution at the node.
__device__ int Round::FirstAccepted(int node) {
  if (!Finite(node)) return -1;
  NodeDistribution p = DistributionAt(node);
  for (int child = NextChild(node, node); child >= 0; child = NextChild(node, child)) {
    const base::TokenId x = shared_.tokens[child];
    const NodeDraft q = DraftOf(child);
    if (OfFirst(q.UnnormalizedProb(x)) == 0) return -1;
    if (Accept(child, OfFirst(p.Chance(1, q, x)))) return child;
    p.Subtract(1, q);
  }
  return -1;
}

__device__ int Round::Reject() {
  int node = 0;
  for (;;) {
    const int child = FirstAccepted(node);
    if (child < 0) return node;
    node = child;
  }
}

// The recursion of verification::TreeVerifier as a loop: `node` is being visited; `child` is its
// child to try next or, if `rejected`, the one that was just rejected.
__device__ int Round::Traverse() {
  int node = 0, child = NextChild(0, 0);
  bool rejected = false;
  double pi = 1;  // probability of the path to `node`, given the rejections so far
  for (;;) {
    NodeDistribution p = DistributionAt(node);
    if (rejected) {
      pi = verification::KeptChance(pi, p.Subtract(pi, DraftOf(child)));
      child = NextChild(node, child);
      rejected = false;
    }
    bool possible = pi > 0;
    if (possible && child >= 0 && Finite(node)) {
      const base::TokenId x = shared_.tokens[child];
      const NodeDraft q = DraftOf(child);
      if (OfFirst(q.UnnormalizedProb(x)) != 0) {
        const double chance = OfFirst(p.Chance(pi, q, x));
        rejected = chance == 0 || (!shared_.has_children[child] && !Accept(child, chance));
        if (rejected) continue;
        if (Thread() == 0) shared_.pi[node] = pi;
        __syncthreads();
        node = child;
        pi = chance;
        child = NextChild(node, node);
        if (child >= 0) continue;
        return node;
      }
    }
    if (possible && Accept(node, pi)) return node;
    child = node;
    node = shared_.parents[child];
    pi = shared_.pi[node];
    rejected = true;
  }
}

__device__ int Round::AcceptTypical() {
  for (int node = 1 + Thread(); node < nodes_; node += Threads()) {
    if (!Finite(shared_.parents[node])) continue;
    const NodeDistribution p = DistributionAt(shared_.parents[node]);
    const double bound = verification::TypicalBound(round_.typical, p.InversePerplexity());
    if (p.Probability(shared_.tokens[node]) > bound) atomicOr(&shared_.typical, 1ULL << node);
  }
  __syncthreads();
  int last = 0;
  unsigned long long paths = 1;  // nodes that are typical with all above them
  for (int node = 1; node < nodes_; ++node) {
    const bool typical = (shared_.typical >> node & paths >> shared_.parents[node] & 1) != 0;
    if (!typical) continue;
    paths |= 1ULL << node;
    if (shared_.depths[node] > shared_.depths[last]) last = node;
  }
  return last;
}

__device__ Walked Round::Verify() {
  ReadTree();
  Walked walked = {.path = 1};
  switch (round_.verification) {
    case VerificationMethod::kRejection:
      walked.last = Reject();
      break;
    case VerificationMethod::kTraversal:
      walked.last = Traverse();
      break;
    case VerificationMethod::kTypical:
      walked.last = AcceptTypical();
      break;
    case VerificationMethod::kCoupled:
      break;
  }
  if (Thread() != 0) return walked;
  const int last = walked.last;
  for (int node = last; node != 0; node = shared_.parents[node]) walked.path |= 1ULL << node;
  if (!Finite(last)) return walked;
  walked.bonus = DistributionAt(last).Sample(
      verification::ResidualUniform(round_.site, last, shared_.depths[last]));
  return walked;
}

// Grid: [sequences].
__global__ __launch_bounds__(kMostWarps * kWarp) void VerifyTrees(RoundBatch batch,
                                                                  RowDistributions distributions,
                                                                  Walked* verified) {
  __shared__ Round::Shared shared;
  const int32_t sequence = static_cast<int32_t>(blockIdx.x);
  Round round(batch, distributions, sequence, &shared);
  const Walked walked = round.Verify();
  if (Thread() == 0) verified[sequence] = walked;
}

}  // namespace

size_t TreeVerifyBytes(const RoundBatch& batch) { return RowDistributions::Bytes(batch); }

absl::Status EnqueueTreeVerify(const RoundBatch& batch, void* workspace, Walked* verified,
                               Stream stream) {
  absl::Status sound = CheckRoundBatch(batch);
  if (!sound.ok()) return sound;
  const RowDistributions distributions = RowDistributions::In(batch, workspace);
  absl::Status launched = EnqueueRowDistributions(batch, distributions, stream);
  if (!launched.ok()) return launched;
  const int warps = std::min(distributions.chunks, kMostWarps);
  return Launch("tree verification", VerifyTrees, dim3(batch.trees.sequences), dim3(warps * kWarp),
                stream, batch, distributions, verified);
}

}  // namespace specfabric::verification::cuda
