#include <algorithm>
#include <cmath>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/exp.h"
#include "verification/cuda/round_rows.h"
#include "verification/cuda/row_distribution.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::Stream;
using base::cuda::Thread;
using base::cuda::Threads;
using base::cuda::WarpMax;

using verification::kRowChunk;

constexpr int kMostThreads = 256;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kKeyShift = 32;  // the position of the score in a PackedChoice
// Bits of the id that are ones in every PackedChoice.
constexpr int kConstantShift = 24;
static_assert(kMostVocabulary == 1 << kConstantShift);
constexpr double kMassOne = 0x1p40;
static_assert(kMassOne * kMostVocabulary <= 0x1p64);

// A token's probability relative to the largest.
struct Share {
  float max;
  double scale;  // log2(e) / T
  __device__ double operator()(float logit) const {
    return logit == max ? 1.0 : base::Exp2((static_cast<double>(logit) - max) * scale);
  }
};

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

// One row, on which all threads of a block work together.
struct FilterRow {
  const float* logits;
  int32_t vocabulary;

  // Calls visit(Competitor of the token, its logit) for the tokens from `least` on.
  template <typename Visit>
  __device__ void ForEach(PackedChoice least, Visit visit) const {
    for (int32_t id = Thread(); id < vocabulary; id += Threads()) {
      const PackedChoice token = Competitor(logits[id], id);
      if (token >= least) visit(token, logits[id]);
    }
  }

  template <typename MassOf>
  __device__ unsigned long long Total(PackedChoice least, MassOf mass_of) const {
    __shared__ unsigned long long total;
    if (Thread() == 0) total = 0;
    __syncthreads();
    unsigned long long mine = 0;
    ForEach(least, [&](PackedChoice /*token*/, float logit) { mine += mass_of(logit); });
    atomicAdd(&total, mine);
    __syncthreads();
    return total;
  }

  // The last token of the shortest sequence of tokens, best first, whose weights sum to at least
  // `wanted`, which is at least 1; `least`, if all tokens from there on sum to less. A radix
  // selection: finds the digits from the highest, by the weight of the tokens that have each value
  // of the next digit.
  template <typename MassOf>
  __device__ PackedChoice LastOf(unsigned long long wanted, PackedChoice least,
                                 MassOf mass_of) const {
    __shared__ unsigned long long masses[kDigits];
    PackedChoice found = 0;
    for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
      if (shift == kConstantShift) {
        found |= PackedChoice{kDigits - 1} << shift;
        continue;
      }
      for (int i = Thread(); i < kDigits; i += Threads()) masses[i] = 0;
      __syncthreads();
      ForEach(least, [&](PackedChoice token, float logit) {
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
};

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

__device__ PackedChoice LeastKept(const FilterRow& row, const base::SamplingParams& sampling,
                                  float max) {
  const base::ExpScale parts = base::ScaleFor(sampling.temperature);
  const Share share = {max, static_cast<double>(parts.high) + parts.low};
  PackedChoice least = 0;
  if (sampling.top_k > 0) least = row.LastOf(sampling.top_k, least, One{});
  if (sampling.top_p < 1.0f) {
    const Mass mass = {share};
    const double total = static_cast<double>(row.Total(least, mass));
    const double wanted = ceil(static_cast<double>(sampling.top_p) * total);
    least = row.LastOf(static_cast<unsigned long long>(wanted), least, mass);
  }
  if (sampling.min_p > 0.0f) {
    const PackedChoice likely = LeastWithShare(share, static_cast<double>(sampling.min_p));
    least = likely > least ? likely : least;
  }
  return least;
}

// Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void FindBests(RoundBatch batch, RowFilters filters) {
  const int chunk = ChunkOfWarp();
  if (chunk >= filters.chunks) return;
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(batch, node);
  const int32_t end = min((chunk + 1) * kRowChunk, batch.vocabulary);
  PackedChoice best = 0;
  for (int32_t id = chunk * kRowChunk + Lane(); id < end; id += kWarp) {
    const PackedChoice token = Competitor(row.logits[id], id);
    best = token > best ? token : best;
  }
  best = WarpMax(best);
  if (Lane() == 0) filters.bests[int64_t{node} * filters.chunks + chunk] = best;
}

// Grid: [nodes].
__global__ __launch_bounds__(kMostThreads) void FilterRows(RoundBatch batch, RowFilters filters) {
  const int32_t node = static_cast<int32_t>(blockIdx.x);
  const RoundRow row = RowOf(batch, node);
  const PackedChoice* const bests = filters.bests + int64_t{node} * filters.chunks;
  PackedChoice best = 0;
  for (int i = Lane(); i < filters.chunks; i += kWarp) {
    best = bests[i] > best ? bests[i] : best;
  }
  best = WarpMax(best);
  const base::SamplingParams& sampling = row.round->sampling;
  RowFilter filter = {.best = best};
  if (filter.finite() && sampling.filtered()) {
    filter.least = LeastKept({row.logits, batch.vocabulary}, sampling, ScoreOf(best));
  }
  if (Thread() == 0) filters.of_node[node] = filter;
}

}  // namespace

size_t RowFilters::Bytes(const RoundBatch& batch) {
  const size_t chunks = ChunksOf(batch.vocabulary);
  return batch.nodes * (chunks * sizeof(PackedChoice) + sizeof(RowFilter));
}

RowFilters RowFilters::In(const RoundBatch& batch, void* workspace) {
  RowFilters filters = {.chunks = ChunksOf(batch.vocabulary)};
  filters.bests = static_cast<PackedChoice*>(workspace);
  const size_t parts = static_cast<size_t>(batch.nodes) * filters.chunks;
  filters.of_node = reinterpret_cast<RowFilter*>(filters.bests + parts);
  return filters;
}

absl::Status EnqueueRowFilters(const RoundBatch& batch, const RowFilters& filters, Stream stream) {
  const ChunkGrid shape = GridOfChunks(batch.nodes, filters.chunks);
  absl::Status found =
      Launch("chunks' bests", FindBests, shape.grid, shape.block, stream, batch, filters);
  if (!found.ok()) return found;
  const int threads = std::min((batch.vocabulary + kWarp - 1) / kWarp * kWarp, kMostThreads);
  return Launch("row filters", FilterRows, dim3(batch.nodes), dim3(threads), stream, batch,
                filters);
}

}  // namespace specfabric::verification::cuda
