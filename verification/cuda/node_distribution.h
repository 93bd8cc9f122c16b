#ifndef SPECFABRIC_VERIFICATION_CUDA_NODE_DISTRIBUTION_H_
#define SPECFABRIC_VERIFICATION_CUDA_NODE_DISTRIBUTION_H_

// The distributions at one node, while a block of threads decides it: the draft's distribution that
// a sibling was drawn from, and the target's, from which rejected siblings subtract. Follows
// verification/cpu/row_distribution.h step by step, for the same bits. Where a comment says so, all
// threads of the block (whole warps) call together and get the same results. A peer may still
// change the draft probabilities: where they decide about control flow, and so about barriers, one
// thread reads them and tells the others. For .cu files alone.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/bfloat16.h"
#include "sampling/draft_row.h"
#include "speculation/tree.h"
#include "verification/cuda/chunk_sum.h"
#include "verification/cuda/prefix_search.h"
#include "verification/cuda/row_distribution.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {

using verification::kRowChunk;

// Tokens of earlier siblings, ascending, without duplicates, and the draft's probability of each:
// the same lists for all threads.
struct TakenTokens {
  const base::TokenId* tokens = nullptr;
  const float* probs = nullptr;
  int count = 0;

  __device__ bool Has(base::TokenId token) const {
    for (int i = 0; i < count; ++i) {
      if (tokens[i] == token) return true;
    }
    return false;
  }
  __device__ bool HasWithin(base::TokenId first, base::TokenId end) const {
    for (int i = 0; i < count; ++i) {
      if (tokens[i] >= first && tokens[i] < end) return true;
    }
    return false;
  }
};

// q(x) = prob(x) / total, as verification::DraftDistribution.
struct NodeDraft {
  const uint16_t* draft_probs = nullptr;  // [entries], bfloat16; null: 1 each
  const base::TokenId* ids = nullptr;     // [entries], ascending; null: of all tokens
  int32_t entries = 0;
  TakenTokens taken = {};
  double total = 0;  // of the draft_probs that are not taken
  float prob = 0;    // of the sibling that was drawn; 0 if it is taken

  __device__ bool whole() const { return ids == nullptr; }
  __device__ float Entry(int32_t i) const {
    return draft_probs == nullptr ? 1.0f : base::WidenBFloat16(draft_probs[i]);
  }
  // The first of the entries begin .. end whose token is at least this one; `end` if there is none.
  __device__ int32_t Search(base::TokenId token, int32_t begin, int32_t end) const {
    while (begin < end) {
      const int32_t middle = (begin + end) / 2;
      if (ids[middle] < token) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
  // The index of the token's entry, or -1.
  __device__ int32_t Find(base::TokenId token) const {
    if (whole()) return token;
    const int32_t at = Search(token, 0, entries);
    return at < entries && ids[at] == token ? at : -1;
  }
  // The token's probability, taken or not.
  __device__ float EntryOf(base::TokenId token) const {
    const int32_t at = Find(token);
    return at < 0 ? 0.0f : Entry(at);
  }
  __device__ double TotalWithoutTaken(double row_total) const;

 private:
  __device__ double TotalBetween(int32_t begin, int32_t end) const;
};

// The sum of the entries begin .. end, in the order of sampling::TotalProb. Called by all threads
// together.
__device__ inline double NodeDraft::TotalBetween(int32_t begin, int32_t end) const {
  return base::cuda::StridedSum<sampling::kProbSums>(begin, end,
                                                     [&](int32_t at) { return Entry(at); });
}

// row_total: the sum including the taken tokens. Called by all threads together.
__device__ inline double NodeDraft::TotalWithoutTaken(double row_total) const {
  double taken_prob = 0;
  for (int i = 0; i < taken.count; ++i) taken_prob += taken.probs[i];
  const double left = row_total - taken_prob;
  // If little is left, the difference has too few significant digits.
  constexpr double kMinRemainder = 1e-3;
  if (left > kMinRemainder * row_total) return left;
  double sum = 0;
  int32_t begin = 0;
  for (int i = 0; i < taken.count; ++i) {
    const int32_t at = base::cuda::OfFirst(Find(taken.tokens[i]));
    if (at < 0) continue;
    sum += TotalBetween(begin, at);
    begin = at + 1;
  }
  return sum + TotalBetween(begin, entries);
}

// The draft probabilities of a chunk that a lane has, as ChunkPart.
struct DraftPart {
  ushort4 of[kChunkGroups];
};
__device__ inline DraftPart ReadProbs(const uint16_t* chunk, int32_t size) {
  const bool aligned = AlignedFours(chunk, sizeof(uint16_t));
  DraftPart part;
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    const int at = PlaceInChunk(group);
    const auto one = [&](int i) { return at + i < size ? chunk[at + i] : uint16_t{0}; };
    if (aligned && at + kFour <= size) {
      part.of[group] = *reinterpret_cast<const ushort4*>(chunk + at);
    } else {
      part.of[group] = {one(0), one(1), one(2), one(3)};
    }
  }
  return part;
}

// What a rejected sibling leaves of a node's distribution where nothing else is to be subtracted:
// of the values only the sums over chunks are kept, since at most one chunk of them is read again.
struct Residual {
  const double* sums = nullptr;  // [chunks]; null: there is none
  NodeDraft q = {};
  double pi = 0;
  double total = 0;  // of the sums
};

// The target's distribution at a node, in device memory. The logits are those of the pass, the
// residuals are written by the calling block.
class NodeDistribution {
 public:
  // total: the sum of the chunks' sums, in shared memory; residuals change it.
  __device__ NodeDistribution(const RoundBatch& batch, const RowDistributions& distributions,
                              int32_t sequence, int32_t node, double* total)
      : vocabulary_(batch.vocabulary),
        chunk_count_(distributions.chunks),
        scale_(base::ScaleFor(batch.rounds[sequence].sampling.temperature)),
        least_(distributions.filters.of_node[node].least),
        values_(distributions.values),
        chunks_(distributions.distribution_chunks + int64_t{node} * distributions.chunks),
        spare_sums_(distributions.spare_sums + int64_t{sequence} * distributions.chunks),
        spare_places_(distributions.spare_places + int64_t{sequence} * distributions.chunks),
        total_(*total) {
    const int32_t row = batch.rounds[sequence].first_logit + node - batch.trees.begin[sequence];
    logits_ = batch.logits + row * batch.stride;
  }

  __device__ float Value(base::TokenId token) const {
    if (token >= vocabulary_) return 0;
    const DistributionChunk& chunk = chunks_[token / kRowChunk];
    if (chunk.kept) return PlaceOf(chunk.place, token / kRowChunk)[token % kRowChunk];
    return ValueOf(logits_[token], token, chunk.reference);
  }
  __device__ double Factor(base::TokenId token) const { return chunks_[token / kRowChunk].factor; }

  // min(1, pi p(x) / q(x)) for the sibling x, of which q has the probability, which is not 0, and
  // `value` and `factor` are p's.
  __device__ double Chance(double pi, const NodeDraft& q, float value, double factor) const;
  // Returns the mass of (pi p - q)+, in [0, 1]; pi > 0. Where that has mass, p becomes its norm if
  // `keep`, and else it is in *left and p no longer of use. sums: null, or SumLeft of every chunk;
  // not with `keep`. Called by all threads together.
  __device__ double Subtract(double pi, const NodeDraft& q, bool keep, const double* sums,
                             Residual* left);
  // The sum of (pi p - q)+ over a chunk, as Subtract has it; with `keep` its values are written to
  // the chunk's spare place. Called by all lanes of a warp together.
  __device__ double SumLeft(double pi, const NodeDraft& q, int chunk, bool keep) const {
    return q.whole() ? SumLeftOfDense(pi, q, chunk, keep) : SumLeftOfSparse(pi, q, chunk, keep);
  }
  // As verification::RowDistribution::Sample, from the residual if there is one. Called by all
  // threads together.
  __device__ base::TokenId Sample(double uniform, const Residual& left) const;

 private:
  __device__ float* PlaceOf(int32_t place, int chunk) const {
    return values_ + (int64_t{place} * chunk_count_ + chunk) * kRowChunk;
  }
  __device__ int32_t SizeOf(int chunk) const {
    return min(kRowChunk, vocabulary_ - chunk * kRowChunk);
  }
  __device__ float ValueOf(float logit, base::TokenId token, float reference) const {
    const bool dropped = least_ != 0 && Competitor(logit, token) < least_;
    return dropped ? 0.0f : base::ScaledExp(logit, reference, scale_);
  }
  __device__ ChunkPart Values(int chunk) const;

  __device__ float DenseFactor(double pi, const NodeDraft& q, double factor) const {
    return static_cast<float>(pi * (q.total * verification::DraftScale(q.total)) / total_ * factor);
  }
  __device__ static float LeftOfDense(float value, float factor, float theirs, float draft_scale) {
    const float difference = std::fma(factor, value, -(draft_scale * theirs));
    return difference > 0.0f ? difference : 0.0f;
  }
  // The entries that may be of the token: begin .. end.
  __device__ float LeftOfSparse(double pi, const NodeDraft& q, float value, double factor,
                                base::TokenId token, int32_t begin, int32_t end) const;
  // What the residual has of a token: its value, and its value times the chunk's factor.
  struct Weight {
    float value;
    double weight;
  };
  __device__ Weight WeightOf(base::TokenId token, const Residual& left) const;

  __device__ double SumLeftOfDense(double pi, const NodeDraft& q, int chunk, bool keep) const;
  __device__ double SumLeftOfSparse(double pi, const NodeDraft& q, int chunk, bool keep) const;
  __device__ void Keep(const ChunkPart& part, int chunk) const;

  __device__ double SumOf(int chunk, const Residual& left) const {
    return left.sums != nullptr ? left.sums[chunk] : chunks_[chunk].sum;
  }
  // Sample as one thread does it.
  __device__ base::TokenId SampleInOrder(double wanted, const Residual& left) const;

  const int32_t vocabulary_, chunk_count_;
  const base::ExpScale scale_;
  const PackedChoice least_;  // RowFilter::least
  const float* logits_;
  float* const values_;
  DistributionChunk* const chunks_;
  double* const spare_sums_;
  int32_t* const spare_places_;
  double& total_;
};

__device__ inline ChunkPart NodeDistribution::Values(int chunk) const {
  const DistributionChunk& own = chunks_[chunk];
  ChunkPart part;
  if (own.kept) {
    const float* const values = PlaceOf(own.place, chunk);
    SPECFABRIC_UNROLL
    for (int group = 0; group < kChunkGroups; ++group) {
      const float4 four = *reinterpret_cast<const float4*>(values + PlaceInChunk(group));
      part.of[group][0] = four.x;
      part.of[group][1] = four.y;
      part.of[group][2] = four.z;
      part.of[group][3] = four.w;
    }
    return part;
  }
  const int32_t first = chunk * kRowChunk;
  part = ReadChunk(logits_ + first, SizeOf(chunk), -INFINITY);
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    SPECFABRIC_UNROLL
    for (int i = 0; i < kFour; ++i) {
      part.of[group][i] =
          ValueOf(part.of[group][i], first + PlaceInChunk(group) + i, own.reference);
    }
  }
  return part;
}

__device__ inline void NodeDistribution::Keep(const ChunkPart& part, int chunk) const {
  float* const values = PlaceOf(spare_places_[chunk], chunk);
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    *reinterpret_cast<float4*>(values + PlaceInChunk(group)) = {
        part.of[group][0], part.of[group][1], part.of[group][2], part.of[group][3]};
  }
  if (Lane() == 0) chunks_[chunk].written = true;
}

__device__ inline double NodeDistribution::Chance(double pi, const NodeDraft& q, float value,
                                                  double factor) const {
  // The same numbers that Subtract compares, so that a token rejected here has no mass there.
  double chance;
  if (q.whole()) {
    const double ours = static_cast<double>(DenseFactor(pi, q, factor)) * value;
    chance = ours / (static_cast<double>(q.prob) * verification::DraftScale(q.total));
  } else {
    chance = pi * (value * factor / total_) / (static_cast<double>(q.prob) / q.total);
  }
  // If the peer changed the draft_probs it may be negative or NaN.
  return chance > 0 ? std::min(1.0, chance) : 0;
}

__device__ inline double NodeDistribution::SumLeftOfDense(double pi, const NodeDraft& q, int chunk,
                                                          bool keep) const {
  const int32_t first = chunk * kRowChunk;
  const DraftPart theirs = ReadProbs(q.draft_probs + first, SizeOf(chunk));
  ChunkPart part = Values(chunk);
  const float factor = DenseFactor(pi, q, chunks_[chunk].factor);
  const float draft_scale = verification::DraftScale(q.total);
  const bool any_taken = q.taken.HasWithin(first, first + kRowChunk);
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    const ushort4& four = theirs.of[group];
    const uint16_t probs[kFour] = {four.x, four.y, four.z, four.w};
    SPECFABRIC_UNROLL
    for (int i = 0; i < kFour; ++i) {
      const bool taken = any_taken && q.taken.Has(first + PlaceInChunk(group) + i);
      const float prob = taken ? 0.0f : base::WidenBFloat16(probs[i]);
      part.of[group][i] = LeftOfDense(part.of[group][i], factor, prob, draft_scale);
    }
  }
  if (keep) Keep(part, chunk);
  return ChunkSum(part);
}

__device__ inline float NodeDistribution::LeftOfSparse(double pi, const NodeDraft& q, float value,
                                                       double factor, base::TokenId token,
                                                       int32_t begin, int32_t end) const {
  const int32_t at = q.Search(token, begin, end);
  const bool has_prob = at < end && q.ids[at] == token && !q.taken.Has(token);
  const double theirs = has_prob ? q.Entry(at) : 0.0f;
  if (theirs == 0 || value == 0) return value;
  const double gone = (theirs / q.total) / (pi * (value * factor / total_));
  return gone >= 1 ? 0.0f : static_cast<float>(value * (1 - gone));
}

__device__ inline double NodeDistribution::SumLeftOfSparse(double pi, const NodeDraft& q, int chunk,
                                                           bool keep) const {
  const int32_t first = chunk * kRowChunk;
  const int32_t begin = __shfl_sync(base::cuda::kAllLanes, q.Search(first, 0, q.entries), 0);
  const int32_t end =
      __shfl_sync(base::cuda::kAllLanes, q.Search(first + kRowChunk, begin, q.entries), 0);
  if (begin == end) return chunks_[chunk].sum;
  ChunkPart part = Values(chunk);
  const double factor = chunks_[chunk].factor;
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    SPECFABRIC_UNROLL
    for (int i = 0; i < kFour; ++i) {
      float& value = part.of[group][i];
      value = LeftOfSparse(pi, q, value, factor, first + PlaceInChunk(group) + i, begin, end);
    }
  }
  if (keep) Keep(part, chunk);
  return ChunkSum(part) * factor;
}

__device__ inline double NodeDistribution::Subtract(double pi, const NodeDraft& q, bool keep,
                                                    const double* sums, Residual* left) {
  using base::cuda::kWarp;
  using base::cuda::Thread;
  using base::cuda::Threads;
  *left = {};
  __syncthreads();  // the previous residual's sums may still be read
  if (sums == nullptr) {
    for (int chunk = Thread() / kWarp; chunk < chunk_count_; chunk += Threads() / kWarp) {
      const double sum = SumLeft(pi, q, chunk, keep);
      if (Lane() == 0) spare_sums_[chunk] = sum;
    }
    sums = spare_sums_;
    __syncthreads();
  }
  const double total = base::cuda::OrderedSum(chunk_count_, [&](int chunk) { return sums[chunk]; });
  const double one = q.whole() ? q.total * verification::DraftScale(q.total) : total_;
  // Also if the peer changed the draft_probs so that the sums are 0 or NaN.
  const bool some = one > 0 && total > verification::kNoMass * one;
  __syncthreads();  // total_ has been read
  for (int i = Thread(); i < chunk_count_ && keep; i += Threads()) {
    DistributionChunk& chunk = chunks_[i];
    const bool written = chunk.written;
    chunk.written = false;
    if (!some) continue;
    chunk.sum = sums[i];
    if (q.whole()) chunk.factor = 1;
    if (!written) continue;
    chunk.kept = true;
    const int32_t place = chunk.place;
    chunk.place = spare_places_[i];
    spare_places_[i] = place;
  }
  if (some && keep && Thread() == 0) total_ = total;
  __syncthreads();
  if (!some) return 0;
  if (!keep) *left = {.sums = sums, .q = q, .pi = pi, .total = total};
  return std::min(1.0, q.whole() ? total / one : pi * total / one);
}

__device__ inline NodeDistribution::Weight NodeDistribution::WeightOf(base::TokenId token,
                                                                      const Residual& left) const {
  const float value = Value(token);
  const double factor = Factor(token);
  if (left.sums == nullptr) return {value, value * factor};
  const NodeDraft& q = left.q;
  if (!q.whole()) {
    const float rest = LeftOfSparse(left.pi, q, value, factor, token, 0, q.entries);
    return {rest, rest * factor};
  }
  const bool none = token >= vocabulary_ || q.taken.Has(token);
  const float rest = LeftOfDense(value, DenseFactor(left.pi, q, factor),
                                 none ? 0.0f : q.Entry(token), verification::DraftScale(q.total));
  return {rest, rest};
}

__device__ inline base::TokenId NodeDistribution::SampleInOrder(double wanted,
                                                                const Residual& left) const {
  double sum = 0;
  int found = 0;
  for (int i = 0; i < chunk_count_; ++i) {
    const double of_chunk = SumOf(i, left);
    if (of_chunk == 0) continue;
    found = i;
    if (sum + of_chunk > wanted) break;
    sum += of_chunk;
  }
  // No probability is left only if the peer changed the draft_probs meanwhile.
  base::TokenId token = found * kRowChunk;
  for (int i = 0; i < kRowChunk && sum <= wanted; ++i) {
    const Weight of_token = WeightOf(found * kRowChunk + i, left);
    if (of_token.value > 0) token = found * kRowChunk + i;
    sum += of_token.weight;
  }
  return token;
}

__device__ inline base::TokenId NodeDistribution::Sample(double uniform,
                                                         const Residual& left) const {
  using base::cuda::kWarp;
  using base::cuda::Thread;
  using base::cuda::Threads;
  __shared__ double weights[kRowChunk / kWarp * (kWarp + 1)];  // no two lanes' in one bank
  __shared__ double before;
  __shared__ int found, within;
  const auto at = [](int i) { return i + i / kWarp; };
  const double total = left.sums != nullptr ? left.total : total_, wanted = uniform * total;
  const double slack = PrefixSlack(chunk_count_ + 2 * kRowChunk, total);
  if (Thread() < kWarp) {
    const PrefixHit hit =
        FindPrefixAbove(chunk_count_, 0, wanted, slack, [&](int i) { return SumOf(i, left); });
    if (Lane() == 0) {
      found = hit.index;
      before = hit.before;
      within = -1;
    }
  }
  __syncthreads();
  if (found >= 0) {
    for (int i = Thread(); i < kRowChunk; i += Threads()) {
      weights[at(i)] = WeightOf(found * kRowChunk + i, left).weight;
    }
    __syncthreads();
    if (Thread() < kWarp) {
      const PrefixHit hit =
          FindPrefixAbove(kRowChunk, before, wanted, slack, [&](int i) { return weights[at(i)]; });
      if (Lane() == 0) within = hit.index;
    }
    __syncthreads();
  }
  if (within >= 0) return found * kRowChunk + within;
  return base::cuda::OfFirst(Thread() == 0 ? SampleInOrder(wanted, left) : base::kNoToken);
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_NODE_DISTRIBUTION_H_
