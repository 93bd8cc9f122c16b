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
#include "verification/cuda/row_distribution.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {

using verification::kRowChunk;

// Tokens of earlier siblings, ascending, without duplicates: the same list for all threads.
struct TakenTokens {
  const base::TokenId* tokens = nullptr;
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
  __device__ float UnnormalizedProb(base::TokenId token) const {
    if (taken.Has(token)) return 0;
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
  for (int i = 0; i < taken.count; ++i) {
    const int32_t at = Find(taken.tokens[i]);
    taken_prob += at < 0 ? 0.0f : Entry(at);
  }
  const double left = base::cuda::OfFirst(row_total - taken_prob);
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

// The target's distribution at a node, in device memory.
class NodeDistribution {
 public:
  __device__ NodeDistribution(const RowDistributions& distributions, int32_t vocabulary,
                              int32_t node, double* spare_sums)
      : vocabulary_(vocabulary),
        chunk_count_(distributions.chunks),
        values_(distributions.values + int64_t{node} * distributions.chunks * kRowChunk),
        chunks_(distributions.distribution_chunks + int64_t{node} * distributions.chunks),
        spare_sums_(spare_sums) {
    for (int i = 0; i < chunk_count_; ++i) total_ += chunks_[i].sum;
  }

  __device__ double Probability(base::TokenId token) const {
    return values_[token] * chunks_[token / kRowChunk].factor / total_;
  }
  // Before any Subtract.
  __device__ double InversePerplexity() const {
    double sum = 0;
    for (int i = 0; i < chunk_count_; ++i) sum += chunks_[i].power_sum;
    return verification::InversePerplexity(total_, sum);
  }
  // As verification::RowDistribution::Sample. Called by one thread.
  __device__ base::TokenId Sample(double uniform) const;
  // min(1, pi p(x) / q(x)); q(x) > 0.
  __device__ double Chance(double pi, const NodeDraft& q, base::TokenId token) const;
  // p becomes norm((pi p - q)+) where that has mass; returns the mass, in [0, 1]. pi > 0. Called by
  // all threads together.
  __device__ double Subtract(double pi, const NodeDraft& q);

 private:
  __device__ float DenseFactor(double pi, const NodeDraft& q,
                               const DistributionChunk& chunk) const {
    return static_cast<float>(pi * (q.total * verification::DraftScale(q.total)) / total_ *
                              chunk.factor);
  }
  // The sum of the residual over a chunk; with `keep` the residual replaces the values. Called by
  // all lanes of a warp together.
  __device__ double SumLeft(double pi, const NodeDraft& q, int chunk, bool keep);
  __device__ double SumLeftOfDense(double pi, const NodeDraft& q, int chunk, bool keep);
  __device__ double SumLeftOfSparse(double pi, const NodeDraft& q, int chunk, bool keep);

  int32_t vocabulary_, chunk_count_;
  float* values_;
  DistributionChunk* chunks_;
  double* spare_sums_;
  double total_ = 0;
};

__device__ inline base::TokenId NodeDistribution::Sample(double uniform) const {
  const double wanted = uniform * total_;
  double sum = 0;
  int found = 0;
  for (int i = 0; i < chunk_count_; ++i) {
    if (chunks_[i].sum == 0) continue;
    found = i;
    if (sum + chunks_[i].sum > wanted) break;
    sum += chunks_[i].sum;
  }
  const float* const values = values_ + int64_t{found} * kRowChunk;
  const double factor = chunks_[found].factor;
  // No probability is left only if the peer changed the draft_probs meanwhile.
  base::TokenId token = found * kRowChunk;
  for (int i = 0; i < kRowChunk && sum <= wanted; ++i) {
    if (values[i] > 0) token = found * kRowChunk + i;
    sum += values[i] * factor;
  }
  return token;
}

__device__ inline double NodeDistribution::Chance(double pi, const NodeDraft& q,
                                                  base::TokenId token) const {
  // The same numbers that Subtract compares, so that a token rejected here has no mass there.
  double chance;
  if (q.whole()) {
    const DistributionChunk& chunk = chunks_[token / kRowChunk];
    const double ours = static_cast<double>(DenseFactor(pi, q, chunk)) * values_[token];
    chance =
        ours / (static_cast<double>(q.UnnormalizedProb(token)) * verification::DraftScale(q.total));
  } else {
    chance = pi * Probability(token) / (q.UnnormalizedProb(token) / q.total);
  }
  // If the peer changed the draft_probs it may be negative or NaN.
  return chance > 0 ? std::min(1.0, chance) : 0;
}

__device__ inline double NodeDistribution::SumLeftOfDense(double pi, const NodeDraft& q, int chunk,
                                                          bool keep) {
  const int32_t first = chunk * kRowChunk;
  float* const values = values_ + first;
  const float factor = DenseFactor(pi, q, chunks_[chunk]);
  const float draft_scale = verification::DraftScale(q.total);
  const bool any_taken = q.taken.HasWithin(first, first + kRowChunk);
  return ChunkSum([&](int i) {
    const base::TokenId token = first + i;
    const bool has_prob = token < vocabulary_ && !(any_taken && q.taken.Has(token));
    const float theirs = has_prob ? q.Entry(token) : 0.0f;
    const float difference = std::fma(factor, values[i], -(draft_scale * theirs));
    const float left = difference > 0.0f ? difference : 0.0f;
    if (keep) values[i] = left;
    return left;
  });
}

__device__ inline double NodeDistribution::SumLeftOfSparse(double pi, const NodeDraft& q, int chunk,
                                                           bool keep) {
  const int32_t first = chunk * kRowChunk;
  const int32_t begin = __shfl_sync(base::cuda::kAllLanes, q.Search(first, 0, q.entries), 0);
  const int32_t end =
      __shfl_sync(base::cuda::kAllLanes, q.Search(first + kRowChunk, begin, q.entries), 0);
  if (begin == end) return chunks_[chunk].sum;
  const double sum = ChunkSum([&](int i) {
    const base::TokenId token = first + i;
    const float value = values_[token];
    const int32_t at = q.Search(token, begin, end);
    const bool has_prob = at < end && q.ids[at] == token && !q.taken.Has(token);
    const double theirs = has_prob ? q.Entry(at) : 0.0f;
    if (theirs == 0 || value == 0) return value;
    const double gone = (theirs / q.total) / (pi * Probability(token));
    const float left = gone >= 1 ? 0.0f : static_cast<float>(value * (1 - gone));
    if (keep) values_[token] = left;
    return left;
  });
  return sum * chunks_[chunk].factor;
}

__device__ inline double NodeDistribution::SumLeft(double pi, const NodeDraft& q, int chunk,
                                                   bool keep) {
  return q.whole() ? SumLeftOfDense(pi, q, chunk, keep) : SumLeftOfSparse(pi, q, chunk, keep);
}

__device__ inline double NodeDistribution::Subtract(double pi, const NodeDraft& q) {
  const int warp = base::cuda::Thread() / base::cuda::kWarp,
            warps = base::cuda::Threads() / base::cuda::kWarp;
  const bool leads = base::cuda::Thread() % base::cuda::kWarp == 0;
  __syncthreads();  // the previous residual's sums may still be read
  for (int chunk = warp; chunk < chunk_count_; chunk += warps) {
    const double sum = SumLeft(pi, q, chunk, /*keep=*/false);
    if (leads) spare_sums_[chunk] = sum;
  }
  __syncthreads();
  double total = 0;
  for (int i = 0; i < chunk_count_; ++i) total += spare_sums_[i];
  const double one = q.whole() ? q.total * verification::DraftScale(q.total) : total_;
  // Also if the peer changed the draft_probs so that the sums are 0 or NaN.
  if (!(one > 0 && total > verification::kNoMass * one)) return 0;

  for (int chunk = warp; chunk < chunk_count_; chunk += warps) {
    SumLeft(pi, q, chunk, /*keep=*/true);
    if (!leads) continue;
    if (q.whole()) chunks_[chunk].factor = 1;
    chunks_[chunk].sum = spare_sums_[chunk];
  }
  __syncthreads();
  total_ = total;
  return std::min(1.0, q.whole() ? total / one : pi * total / one);
}

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_NODE_DISTRIBUTION_H_
