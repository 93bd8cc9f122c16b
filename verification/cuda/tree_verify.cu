#include "verification/cuda/tree_verify.h"

#include <algorithm>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "speculation/tree.h"
#include "verification/cuda/draft_rows.h"
#include "verification/cuda/node_distribution.h"
#include "verification/cuda/round_rows.h"
#include "verification/cuda/row_distribution.h"
#include "verification/randomness.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::LaunchOptions;
using base::cuda::Stream;
using base::cuda::Thread;
using base::cuda::Threads;

using speculation::SiblingDraw;
using speculation::VerificationMethod;

constexpr int kNodes = speculation::kMaxVerifyNodes;
// A block has this many at most, so that a thread may have all registers that it can use.
constexpr int kMostWarps = 8, kMostThreads = kMostWarps * kWarp;

// One tree's round, on which all threads of a block work together: they take the same steps and
// share the work on a row. Nodes are numbered within the tree.
class Round {
 public:
  // In shared memory. What a step reads about a node is there from the beginning, so that it takes
  // no step to wait for memory unless it works on a whole row.
  struct Shared {
    int32_t parents[kNodes];
    base::TokenId tokens[kNodes];
    int32_t depths[kNodes];
    int32_t draft_row[kNodes];
    unsigned long long children[kNodes];  // a bit each
    double accept[kNodes];                // verification::AcceptUniform
    bool finite[kNodes];                  // the target's logits at the node
    double totals[kNodes];                // NodeDistribution's, where they are
    // Of the node's token: the target's distribution at its parent, while nothing is subtracted
    // from that, and the draft's probability in its row.
    float values[kNodes];
    double factors[kNodes];
    float draft_probs[kNodes];
    double pi[kNodes];  // of Traverse: when it went on below a node
    base::TokenId taken[kNodes];
    float taken_probs[kNodes];
    int taken_count;
    unsigned long long
        typical;  // of AcceptTypical: nodes typical under their parent's distribution
  };

  __device__ Round(const RoundBatch& batch, const RowDistributions& distributions, int32_t sequence,
                   Shared* shared)
      : batch_(batch),
        distributions_(distributions),
        round_(batch.rounds[sequence]),
        sequence_(sequence),
        begin_(batch.trees.begin[sequence]),
        nodes_(batch.trees.begin[sequence + 1] - begin_),
        shared_(*shared) {}

  __device__ Walked Verify();
  // Sets the residuals of whole rows that Verify will surely or likely ask for first, so that all
  // processors add them up, and not one alone.
  __device__ void Plan();

 private:
  __device__ void ReadTree();
  __device__ void ReadProbs();
  // The next child of `node` after `child`, the first one if `child` is `node` itself; -1: none.
  __device__ int NextChild(int node, int child) const {
    const unsigned long long later = shared_.children[node] & (~1ULL << child);
    return __ffsll(static_cast<long long>(later)) - 1;
  }
  __device__ NodeDistribution DistributionAt(int node) const {
    return NodeDistribution(batch_, distributions_, sequence_, begin_ + node,
                            &shared_.totals[node]);
  }
  // Whether the target's logits at the node are all finite; if not, nothing below it is accepted.
  __device__ bool Finite(int node) const { return shared_.finite[node]; }
  __device__ bool Accept(int node, double probability) const {
    return shared_.accept[node] < probability;
  }

  // The row that the node's token was drawn from.
  __device__ NodeDraft RowOf(int node) const;
  // The distribution that the draft drew `child` from, given the siblings before it. Called by all
  // threads together, which must be done with the previous one.
  __device__ NodeDraft DraftOf(int child);
  __device__ TakenTokens TakenBefore(int child);

  // Of the distribution p at the parent of `child`, drawn from q.
  __device__ double Chance(const NodeDistribution& p, double pi, const NodeDraft& q,
                           int child) const;
  __device__ double Subtract(NodeDistribution* p, double pi, const NodeDraft& q, int child);

  // The last accepted node.
  __device__ int Reject();
  __device__ int FirstAccepted(int node);
  __device__ int Traverse();
  // Whether the node will not be accepted itself, now that its last child is rejected, which had
  // this chance: without looking at the residual.
  __device__ bool IsLost(int node, double pi, const NodeDraft& q, double chance) const;
  __device__ int AcceptTypical();

  const RoundBatch& batch_;
  const RowDistributions& distributions_;
  const TreeRound& round_;
  const int32_t sequence_, begin_, nodes_;
  Shared& shared_;
  unsigned long long changed_ = 0;  // nodes from whose distributions siblings were subtracted
  Residual left_ = {};              // of the last node from which a sibling was subtracted
};

__device__ void Round::ReadTree() {
  const bool has_rows = speculation::NeedsDraftRows(round_.verification, round_.draw);
  for (int node = Thread(); node < nodes_; node += Threads()) {
    shared_.parents[node] = batch_.trees.parents[begin_ + node];
    shared_.tokens[node] = batch_.trees.tokens[begin_ + node];
    shared_.draft_row[node] = has_rows ? batch_.draft_row[begin_ + node] : 0;
    shared_.finite[node] = distributions_.filters.of_node[begin_ + node].finite();
    shared_.totals[node] = distributions_.totals[begin_ + node].sum;
    shared_.children[node] = 0;
  }
  for (int i = Thread(); i < distributions_.chunks; i += Threads()) {
    distributions_.spare_places[int64_t{sequence_} * distributions_.chunks + i] =
        batch_.nodes + sequence_;
  }
  if (Thread() == 0) shared_.typical = 1;  // the root
  __syncthreads();
  for (int node = Thread(); node < nodes_; node += Threads()) {
    int32_t depth = 0;
    for (int above = node; above != 0; above = shared_.parents[above]) ++depth;
    shared_.depths[node] = depth;
    shared_.accept[node] = verification::AcceptUniform(round_.site, node, depth);
    if (node != 0) atomicOr(&shared_.children[shared_.parents[node]], 1ULL << node);
  }
}

__device__ NodeDraft Round::RowOf(int node) const {
  if (round_.draw == SiblingDraw::kDeterministic) {
    return {.ids = &shared_.tokens[node], .entries = 1, .total = 1};
  }
  const DraftRowLayout layout = {batch_.vocabulary, round_.entries};
  const uint8_t* const place = round_.draft_probs + shared_.draft_row[node] * layout.row_bytes();
  return {.draft_probs = reinterpret_cast<const uint16_t*>(place + layout.id_bytes()),
          .ids = layout.whole() ? nullptr : reinterpret_cast<const base::TokenId*>(place),
          .entries = round_.entries};
}

__device__ void Round::ReadProbs() {
  const bool has_draft = speculation::UsesDraftProbs(round_.verification);
  for (int node = 1 + Thread(); node < nodes_; node += Threads()) {
    const base::TokenId token = shared_.tokens[node];
    const int parent = shared_.parents[node];
    if (has_draft) shared_.draft_probs[node] = RowOf(node).EntryOf(token);
    if (!Finite(parent)) continue;
    const NodeDistribution p = DistributionAt(parent);
    shared_.values[node] = p.Value(token);
    shared_.factors[node] = p.Factor(token);
  }
  __syncthreads();
}

__device__ TakenTokens Round::TakenBefore(int child) {
  if (round_.draw != SiblingDraw::kWithoutReplacement) return {};
  const int parent = shared_.parents[child];
  const unsigned long long before = (1ULL << child) - 1;
  if ((shared_.children[parent] & before) == 0) return {};
  __syncthreads();  // the previous list may still be read
  if (Thread() == 0) {
    int count = 0;
    for (int earlier = NextChild(parent, parent); earlier < child;
         earlier = NextChild(parent, earlier)) {
      if (shared_.draft_row[earlier] != shared_.draft_row[child]) continue;
      const base::TokenId token = shared_.tokens[earlier];
      int at = count;
      while (at > 0 && shared_.taken[at - 1] > token) --at;
      if (at > 0 && shared_.taken[at - 1] == token) continue;
      for (int i = count++; i > at; --i) {
        shared_.taken[i] = shared_.taken[i - 1];
        shared_.taken_probs[i] = shared_.taken_probs[i - 1];
      }
      shared_.taken[at] = token;
      shared_.taken_probs[at] = shared_.draft_probs[earlier];
    }
    shared_.taken_count = count;
  }
  __syncthreads();
  return {shared_.taken, shared_.taken_probs, shared_.taken_count};
}

__device__ NodeDraft Round::DraftOf(int child) {
  NodeDraft draft = RowOf(child);
  draft.prob = shared_.draft_probs[child];
  if (round_.draw == SiblingDraw::kDeterministic) return draft;
  draft.taken = TakenBefore(child);
  if (draft.taken.Has(shared_.tokens[child])) draft.prob = 0;
  draft.total = draft.TotalWithoutTaken(round_.totals[shared_.draft_row[child]]);
  return draft;
}

__device__ double Round::Chance(const NodeDistribution& p, double pi, const NodeDraft& q,
                                int child) const {
  const bool changed = (changed_ >> shared_.parents[child] & 1) != 0;
  const base::TokenId token = shared_.tokens[child];
  return p.Chance(pi, q, changed ? p.Value(token) : shared_.values[child],
                  changed ? p.Factor(token) : shared_.factors[child]);
}

__device__ double Round::Subtract(NodeDistribution* p, double pi, const NodeDraft& q, int child) {
  const int node = shared_.parents[child];
  const bool keep = NextChild(node, child) >= 0;
  if (keep) changed_ |= 1ULL << node;
  const double* sums = nullptr;
  if (!keep && distributions_.wanted != nullptr) {
    const WantedResidual& wanted = distributions_.wanted[begin_ + node];
    if (wanted.pi == pi && wanted.child == begin_ + child) {
      sums = distributions_.wanted_sums + int64_t{begin_ + node} * distributions_.chunks;
    }
  }
  return p->Subtract(pi, q, keep, sums, &left_);
}

// The first accepted child of `node`, or -1. The residual that the rejected children leave replaces
// the target's distribution at the node.
__device__ int Round::FirstAccepted(int node) {
  if (!Finite(node)) return -1;
  NodeDistribution p = DistributionAt(node);
  for (int child = NextChild(node, node); child >= 0; child = NextChild(node, child)) {
    const NodeDraft q = DraftOf(child);
    if (q.prob == 0) return -1;
    if (Accept(child, Chance(p, 1, q, child))) return child;
    Subtract(&p, 1, q, child);
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

// The residual's mass S, the sum of (pi p - q)+, is pi less the sum of min(pi p, q), to which the
// child's token x alone contributes chance q(x); and what the node keeps grows with S. This spares
// most of the rows that would be read: the deeper the node, the smaller pi.
__device__ bool Round::IsLost(int node, double pi, const NodeDraft& q, double chance) const {
  constexpr double kRounding = 0x1p-16;  // far more than S, added up in float32, can be off
  const double most = pi - chance * (q.prob / q.total) + kRounding;
  return shared_.accept[node] >= verification::KeptChance(pi, most) * (1 + kRounding);
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
      const NodeDraft q = DraftOf(child);
      const int next = NextChild(node, child);
      const bool lost = next < 0 && IsLost(node, pi, q, Chance(p, pi, q, child));
      pi = lost ? 0 : verification::KeptChance(pi, Subtract(&p, pi, q, child));
      child = next;
      rejected = false;
    }
    const bool possible = pi > 0;
    if (possible && child >= 0 && Finite(node)) {
      const NodeDraft q = DraftOf(child);
      if (q.prob != 0) {
        const double chance = Chance(p, pi, q, child);
        const bool leaf = shared_.children[child] == 0;
        rejected = chance == 0 || (leaf && !Accept(child, chance));
        if (rejected) continue;
        if (leaf) return child;
        if (Thread() == 0) shared_.pi[node] = pi;
        __syncthreads();
        node = child;
        pi = chance;
        child = NextChild(node, node);
        left_ = {};
        continue;
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
    const int parent = shared_.parents[node];
    if (!Finite(parent)) continue;
    const double total = shared_.totals[parent];
    const double inverse_perplexity =
        verification::InversePerplexity(total, distributions_.totals[begin_ + parent].power_sum);
    const double bound = verification::TypicalBound(round_.typical, inverse_perplexity);
    const double probability = shared_.values[node] * shared_.factors[node] / total;
    if (probability > bound) atomicOr(&shared_.typical, 1ULL << node);
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

// Follows Reject to the first rejection, or Traverse to where it turns back for the first time:
// from then on it may ask for what the only child of each node on the way leaves. What Verify asks
// for beyond that depends on these, and it adds that up itself.
__device__ void Round::Plan() {
  for (int node = Thread(); node < nodes_; node += Threads()) {
    distributions_.wanted[begin_ + node] = {};
  }
  ReadTree();
  ReadProbs();
  if (!speculation::UsesDraftProbs(round_.verification)) return;
  const bool traverses = round_.verification == VerificationMethod::kTraversal;
  unsigned long long wanted = 0;  // nodes
  int node = 0;
  double pi = 1;
  for (;;) {
    const int child = NextChild(node, node);
    if (child < 0 || !Finite(node)) break;
    const NodeDraft q = DraftOf(child);
    if (q.prob == 0) break;
    const double chance = Chance(DistributionAt(node), pi, q, child);
    const bool leaf = shared_.children[child] == 0;
    const bool goes_on = traverses && !leaf ? chance > 0 : Accept(child, chance);
    if (leaf && goes_on) {
      wanted = 0;
      break;
    }
    const bool asks = traverses ? !IsLost(node, pi, q, chance) : !goes_on;
    if (asks && q.whole() && NextChild(node, child) < 0) wanted |= 1ULL << node;
    if (Thread() == 0) shared_.pi[node] = pi;
    if (!goes_on) break;
    node = child;
    if (traverses) pi = chance;
  }
  __syncthreads();
  for (node = Thread(); node < nodes_; node += Threads()) {
    if ((wanted >> node & 1) == 0) continue;
    distributions_.wanted[begin_ + node] = {shared_.pi[node], begin_ + NextChild(node, node)};
  }
}

__device__ Walked Round::Verify() {
  ReadTree();
  ReadProbs();
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
  const int last = walked.last;
  for (int node = last; node != 0; node = shared_.parents[node]) walked.path |= 1ULL << node;
  if (!Finite(last)) return walked;
  walked.bonus = DistributionAt(last).Sample(
      verification::ResidualUniform(round_.site, last, shared_.depths[last]), left_);
  return walked;
}

// Grid: [sequences].
__global__ __launch_bounds__(kMostThreads, 1) void VerifyTrees(RoundBatch batch,
                                                               RowDistributions distributions,
                                                               Walked* verified) {
  AwaitInputs();
  __shared__ Round::Shared shared;
  const int32_t sequence = static_cast<int32_t>(blockIdx.x);
  Round round(batch, distributions, sequence, &shared);
  const Walked walked = round.Verify();
  if (Thread() == 0) verified[sequence] = walked;
}

// Grid: [sequences].
__global__ __launch_bounds__(kNodes) void PlanResiduals(RoundBatch batch,
                                                        RowDistributions distributions) {
  AwaitInputs();
  __shared__ Round::Shared shared;
  Round round(batch, distributions, static_cast<int32_t>(blockIdx.x), &shared);
  round.Plan();
}

// Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void SumResiduals(RoundBatch batch,
                                                              RowDistributions distributions) {
  AwaitInputs();
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const WantedResidual wanted = distributions.wanted[node];
  const int chunk = ChunkOfWarp();
  if (wanted.pi == 0 || chunk >= distributions.chunks) return;
  const int32_t sequence = SequenceOf(batch.trees, node);
  const TreeRound& round = batch.rounds[sequence];
  const int32_t row = batch.draft_row[wanted.child];
  const DraftRowLayout layout = {batch.vocabulary, round.entries};
  const NodeDraft q = {.draft_probs = reinterpret_cast<const uint16_t*>(round.draft_probs +
                                                                        row * layout.row_bytes()),
                       .entries = round.entries,
                       .total = round.totals[row]};
  double total = distributions.totals[node].sum;
  const NodeDistribution p(batch, distributions, sequence, node, &total);
  const double sum = p.SumLeft(wanted.pi, q, chunk, /*keep=*/false);
  if (Lane() == 0) distributions.wanted_sums[int64_t{node} * distributions.chunks + chunk] = sum;
}

}  // namespace

size_t TreeVerifyBytes(const RoundBatch& batch) { return RowDistributions::Bytes(batch); }

absl::Status EnqueueTreeVerify(const RoundBatch& batch, void* workspace, void* joins,
                               Walked* verified, Stream stream) {
  absl::Status sound = CheckRoundBatch(batch);
  if (!sound.ok()) return sound;
  RowDistributions distributions = RowDistributions::In(batch, workspace, joins);
  absl::Status status = EnqueueRowDistributions(batch, distributions, stream);
  if (!status.ok()) return status;
  const LaunchOptions options = {.overlaps = true};
  const dim3 sequences(batch.trees.sequences);
  if (batch.whole_rows) {
    const ChunkGrid shape = GridOfChunks(batch.nodes, distributions.chunks);
    status.Update(Launch("plan of residuals", PlanResiduals, sequences, dim3(kNodes), options,
                         stream, batch, distributions));
    status.Update(Launch("residuals", SumResiduals, shape.grid, shape.block, options, stream, batch,
                         distributions));
    if (!status.ok()) return status;
  } else {
    distributions.wanted = nullptr;
  }
  const int warps = std::min(distributions.chunks, kMostWarps);
  return Launch("tree verification", VerifyTrees, sequences, dim3(warps * kWarp), options, stream,
                batch, distributions, verified);
}

}  // namespace specfabric::verification::cuda
