#include <algorithm>
#include <cmath>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "base/exp.h"
#include "verification/cuda/round_rows.h"
#include "verification/cuda/row_distribution.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kWarp;
using base::cuda::LastToArrive;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::Stream;
using base::cuda::Thread;
using base::cuda::Threads;
using base::cuda::WarpMax;

using verification::kRowChunk;

constexpr int kMostThreads = 512;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kKeyShift = 32;  // the position of the score in a PackedChoice
// Bits of the id that are ones in every PackedChoice.
constexpr int kConstantShift = 24;
static_assert(kMostVocabulary == 1 << kConstantShift);
constexpr double kMassOne = 0x1p40;
static_assert(kMassOne * kMostVocabulary <= 0x1p64);
constexpr int kBins = RowFilters::kBins;

// A token's probability relative to the largest.
struct Share {
  float max;
  double scale;  // log2(e) / T
  __device__ double operator()(float logit) const {
    return logit == max ? 1.0 : base::Exp2((static_cast<double>(logit) - max) * scale);
  }
};
__device__ Share ShareOf(const base::SamplingParams& sampling, float max) {
  const base::ExpScale parts = base::ScaleFor(sampling.temperature);
  return {max, static_cast<double>(parts.high) + parts.low};
}

// A token's weight in the sums of top-k and top-p.
struct One {
  __device__ unsigned long long operator()(float /*logit*/) const { return 1; }
};
struct Mass {
  Share share;
  __device__ unsigned long long operator()(float logit) const {
    return static_cast<unsigned long long>(share(logit) * kMassOne + 0.5);
  }
};

// The bin of a row's histogram that a token belongs to: the first has the likeliest, and no bin has
// a token that is likelier than one of a bin before.
struct Bins {
  float max, scale;
  __device__ Bins(const base::SamplingParams& sampling, float max_logit)
      : max(max_logit), scale(kBins / 42.0f * base::ScaleFor(sampling.temperature).high) {}
  __device__ int Of(float logit) const {
    const float distance = (max - logit) * scale;  // masses are 0 from 41 binary digits on
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  }
};
__device__ bool HasHistogram(const base::SamplingParams& sampling) {
  return sampling.top_k > 0 || sampling.top_p < 1.0f;
}

// The tokens of a row, on which all threads of a block work together.
struct RowTokens {
  const float* logits;
  int32_t vocabulary;

  // Calls visit(Competitor of the token, its logit) for the tokens from `least` on.
  template <typename Visit>
  __device__ void ForEach(PackedChoice least, Visit visit) const {
    constexpr int kAtOnce = 8;  // loads under way
    for (int32_t first = Thread(); first < vocabulary; first += kAtOnce * Threads()) {
      float loaded[kAtOnce];
      SPECFABRIC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t id = first + i * Threads();
        loaded[i] = id < vocabulary ? logits[id] : 0;
      }
      SPECFABRIC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t id = first + i * Threads();
        const PackedChoice token = Competitor(loaded[i], id);
        if (id < vocabulary && token >= least) visit(token, loaded[i]);
      }
    }
  }
};

// Some tokens of a row, in shared memory, in any order.
struct ListedTokens {
  static constexpr unsigned kMost = 2048;
  PackedChoice tokens[kMost];
  unsigned count;

  template <typename Visit>
  __device__ void ForEach(PackedChoice least, Visit visit) const {
    for (unsigned i = Thread(); i < count; i += Threads()) {
      if (tokens[i] >= least) visit(tokens[i], ScoreOf(tokens[i]));
    }
  }
};

// The weights of the tokens from `least` on. Called by all threads of the block together, as is
// LastOf.
template <typename Tokens, typename MassOf>
__device__ unsigned long long Total(const Tokens& tokens, PackedChoice least, MassOf mass_of) {
  __shared__ unsigned long long total;
  if (Thread() == 0) total = 0;
  __syncthreads();
  unsigned long long mine = 0;
  tokens.ForEach(least, [&](PackedChoice /*token*/, float logit) { mine += mass_of(logit); });
  atomicAdd(&total, mine);
  __syncthreads();
  return total;
}

// The last token of the shortest sequence of tokens, best first, whose weights sum to at least
// `wanted`, which is at least 1; `least`, if all tokens from there on sum to less. A radix
// selection: finds the digits from the highest, by the weight of the tokens that have each value of
// the next digit.
template <typename Tokens, typename MassOf>
__device__ PackedChoice LastOf(const Tokens& tokens, unsigned long long wanted, PackedChoice least,
                               MassOf mass_of) {
  __shared__ unsigned long long masses[kDigits];
  PackedChoice found = 0;
  for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    if (shift == kConstantShift) {
      found |= PackedChoice{kDigits - 1} << shift;
      continue;
    }
    for (int i = Thread(); i < kDigits; i += Threads()) masses[i] = 0;
    __syncthreads();
    tokens.ForEach(least, [&](PackedChoice token, float logit) {
      const bool agrees = ((token ^ found) >> shift >> kDigitBits) == 0;
      if (agrees) atomicAdd(&masses[token >> shift & (kDigits - 1)], mass_of(logit));
    });
    __syncthreads();
    int digit = kDigits - 1;
    while (digit >= 0 && masses[digit] < wanted) wanted -= masses[digit--];
    const unsigned long long of_digit = digit < 0 ? 0 : masses[digit];
    __syncthreads();  // before it is cleared for the next digit
    if (digit < 0) return least;
    found |= static_cast<PackedChoice>(digit) << shift;
    const bool one_token = shift == kKeyShift && of_digit == mass_of(ScoreOf(found));
    if (one_token) return found > least ? found : least;
  }
  return found;
}

// The least Competitor with at least this relative probability.
__device__ PackedChoice LeastWithShare(Share share, double wanted) {
  uint32_t low = static_cast<uint32_t>(Pack(-INFINITY, 0) >> kKeyShift);
  uint32_t high = static_cast<uint32_t>(Pack(share.max, 0) >> kKeyShift);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (share(ScoreOf(PackedChoice{middle} << kKeyShift)) >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return PackedChoice{low} << kKeyShift;
}

// The weight of which top-p keeps the first tokens.
__device__ unsigned long long WantedOf(float top_p, unsigned long long total) {
  return static_cast<unsigned long long>(
      ceil(static_cast<double>(top_p) * static_cast<double>(total)));
}

// What top-k and then top-p keep of all tokens of a row, or of the likeliest, at least top_k.
template <typename Tokens>
__device__ PackedChoice LeastOfTopKAndP(const Tokens& tokens, const base::SamplingParams& sampling,
                                        Share share) {
  PackedChoice least = 0;
  if (sampling.top_k > 0) least = LastOf(tokens, sampling.top_k, least, One{});
  if (sampling.top_p < 1.0f) {
    const Mass mass = {share};
    const unsigned long long total = Total(tokens, least, mass);
    least = LastOf(tokens, WantedOf(sampling.top_p, total), least, mass);
  }
  return least;
}

// The same with the row's histogram, which tells in which bin the last token is, so that only few
// tokens are looked at more than once.
__device__ PackedChoice LeastByHistogram(const RowTokens& row, const base::SamplingParams& sampling,
                                         float max, const unsigned long long* histogram) {
  __shared__ ListedTokens list;
  const bool by_count = sampling.top_k > 0;
  unsigned long long wanted = sampling.top_k;
  if (!by_count) {
    unsigned long long total = 0;
    for (int i = 0; i < kBins; ++i) total += histogram[i];
    wanted = WantedOf(sampling.top_p, total);
  }
  int bin = 0;
  unsigned long long before = 0;
  while (bin < kBins && before + histogram[bin] < wanted) before += histogram[bin++];
  const Share share = ShareOf(sampling, max);
  if (bin == kBins) return LeastOfTopKAndP(row, sampling, share);

  if (Thread() == 0) list.count = 0;
  __syncthreads();
  const Bins bins(sampling, max);
  row.ForEach(0, [&](PackedChoice token, float logit) {
    const int of = bins.Of(logit);
    if (of > bin || (of < bin && !by_count)) return;
    const unsigned at = atomicAdd(&list.count, 1u);
    if (at < ListedTokens::kMost) list.tokens[at] = token;
  });
  __syncthreads();
  if (list.count > ListedTokens::kMost) return LeastOfTopKAndP(row, sampling, share);
  return by_count ? LeastOfTopKAndP(list, sampling, share)
                  : LastOf(list, wanted - before, 0, Mass{share});
}

// Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void FindBests(RoundBatch batch, RowFilters filters,
                                                           bool only_filtered) {
  AwaitInputs();
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(batch, node);
  if (only_filtered && !row.round->sampling.filtered()) return;
  RowJoin* const join = filters.joins + node;
  const int chunk = ChunkOfWarp();
  if (chunk < filters.chunks) {
    const int32_t first = chunk * kRowChunk, size = min(kRowChunk, batch.vocabulary - first);
    const ChunkPart part = ReadChunk(row.logits + first, size, 0);
    PackedChoice best = 0;
    SPECFABRIC_UNROLL
    for (int group = 0; group < kChunkGroups; ++group) {
      SPECFABRIC_UNROLL
      for (int i = 0; i < kFour; ++i) {
        const int at = PlaceInChunk(group) + i;
        if (at < size) best = max(best, Competitor(part.of[group][i], first + at));
      }
    }
    best = WarpMax(best);
    if (Lane() == 0) {
      filters.bests[int64_t{node} * filters.chunks + chunk] = best;
      atomicMax(&join->best, static_cast<unsigned long long>(best));
    }
  }
  LetNextBegin();
  if (!LastToArrive(&join->arrived, gridDim.x) || Thread() != 0) return;
  filters.of_node[node] = {.best = __ldcg(&join->best)};
  join->best = 0;
}

// Adds up in bins what the filters of a row need: for top-k the number of tokens, else their
// masses. Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void FillHistograms(RoundBatch batch,
                                                                RowFilters filters) {
  AwaitInputs();
  // Of each sum the lower and the upper half: a processor adds up words of 32 bits by itself.
  __shared__ unsigned lower[kBins], upper[kBins];
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(batch, node);
  const base::SamplingParams& sampling = row.round->sampling;
  const RowFilter filter = filters.of_node[node];
  if (!HasHistogram(sampling) || !filter.finite()) return;
  for (int i = Thread(); i < kBins; i += Threads()) lower[i] = upper[i] = 0;
  __syncthreads();
  const int chunk = ChunkOfWarp();
  const float max = ScoreOf(filter.best);
  const Bins bins(sampling, max);
  const Mass mass = {ShareOf(sampling, max)};
  const bool by_count = sampling.top_k > 0;
  const int32_t first = chunk * kRowChunk;
  const int32_t size = chunk < filters.chunks ? min(kRowChunk, batch.vocabulary - first) : 0;
  if (size > 0) {
    const ChunkPart part = ReadChunk(row.logits + first, size, 0);
    SPECFABRIC_UNROLL
    for (int group = 0; group < kChunkGroups; ++group) {
      SPECFABRIC_UNROLL
      for (int i = 0; i < kFour; ++i) {
        if (PlaceInChunk(group) + i >= size) continue;
        const float logit = part.of[group][i];
        const unsigned long long weight = by_count ? 1 : mass(logit);
        const auto low = static_cast<unsigned>(weight);
        const int bin = bins.Of(logit);
        if (weight == 0) continue;
        const unsigned before = atomicAdd(&lower[bin], low);
        const unsigned high = static_cast<unsigned>(weight >> 32) + (before + low < before ? 1 : 0);
        if (high != 0) atomicAdd(&upper[bin], high);
      }
    }
  }
  __syncthreads();
  unsigned long long* const histogram = filters.histograms + int64_t{node} * kBins;
  for (int i = Thread(); i < kBins; i += Threads()) {
    const unsigned long long sum = static_cast<unsigned long long>(upper[i]) << 32 | lower[i];
    if (sum != 0) atomicAdd(&histogram[i], sum);
  }
}

// Of the rows that have any, what the filters keep. Grid: [nodes].
__global__ __launch_bounds__(kMostThreads, 1) void FilterRows(RoundBatch batch,
                                                              RowFilters filters) {
  AwaitInputs();
  __shared__ unsigned long long histogram[kBins];
  const int32_t node = static_cast<int32_t>(blockIdx.x);
  const RoundRow row = RowOf(batch, node);
  const base::SamplingParams& sampling = row.round->sampling;
  const RowFilter filter = filters.of_node[node];
  if (!filter.finite() || !sampling.filtered()) return;
  const float max = ScoreOf(filter.best);
  PackedChoice least = 0;
  if (HasHistogram(sampling)) {
    unsigned long long* const filled = filters.histograms + int64_t{node} * kBins;
    for (int i = Thread(); i < kBins; i += Threads()) {
      histogram[i] = filled[i];
      filled[i] = 0;
    }
    __syncthreads();
    least = LeastByHistogram({row.logits, batch.vocabulary}, sampling, max, histogram);
  }
  if (sampling.min_p > 0.0f) {
    const PackedChoice likely =
        LeastWithShare(ShareOf(sampling, max), static_cast<double>(sampling.min_p));
    least = likely > least ? likely : least;
  }
  if (Thread() == 0) filters.of_node[node].least = least;
}

}  // namespace

size_t RowFilters::Bytes(const RoundBatch& batch) {
  const size_t chunks = ChunksOf(batch.vocabulary);
  return batch.nodes * (chunks * sizeof(PackedChoice) + sizeof(RowFilter));
}

RowFilters RowFilters::In(const RoundBatch& batch, void* workspace, void* joins) {
  RowFilters filters = {.chunks = ChunksOf(batch.vocabulary)};
  filters.bests = static_cast<PackedChoice*>(workspace);
  const size_t parts = static_cast<size_t>(batch.nodes) * filters.chunks;
  filters.of_node = reinterpret_cast<RowFilter*>(filters.bests + parts);
  filters.joins = static_cast<RowJoin*>(joins);
  filters.histograms = reinterpret_cast<unsigned long long*>(filters.joins + batch.nodes);
  return filters;
}

absl::Status EnqueueRowFilters(const RoundBatch& batch, const RowFilters& filters,
                               bool only_filtered, Stream stream) {
  const ChunkGrid shape = GridOfChunks(batch.nodes, filters.chunks);
  absl::Status found = Launch("chunks' bests", FindBests, shape.grid, shape.block,
                              {.overlaps = true}, stream, batch, filters, only_filtered);
  if (!found.ok() || !batch.filtered) return found;
  absl::Status filled = Launch("filters' histograms", FillHistograms, shape.grid, shape.block,
                               {.overlaps = true}, stream, batch, filters);
  if (!filled.ok()) return filled;
  const int threads = std::min((batch.vocabulary + kWarp - 1) / kWarp * kWarp, kMostThreads);
  return Launch("row filters", FilterRows, dim3(batch.nodes), dim3(threads), {.overlaps = true},
                stream, batch, filters);
}

}  // namespace specfabric::verification::cuda
