#include "verification/cuda/row_distribution.h"

#include <algorithm>
#include <cmath>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "base/exp.h"
#include "verification/cuda/chunk_sum.h"
#include "verification/cuda/round_rows.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kWarp;
using base::cuda::LastToArrive;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::OrderedSum;
using base::cuda::Stream;
using base::cuda::Thread;
using base::cuda::Threads;
using base::cuda::WarpMax;

using verification::kRowChunk;

// The logits that verification::RowDistribution::Open uses: -inf where the filters drop the token.
struct FilteredRow {
  RowFilter filter;

  __device__ float max() const { return ScoreOf(filter.best); }
  __device__ float Logit(PackedChoice token, float logit) const {
    return token < filter.least ? -INFINITY : logit;
  }
  // The largest of a chunk. If the filters keep any token of a chunk, they keep its best.
  __device__ float Largest(PackedChoice best_of_chunk) const {
    return Logit(best_of_chunk, ScoreOf(best_of_chunk));
  }
};

// The largest logit of the chunks before this one; of the first chunk, its own. Called by all lanes
// of its warp together.
template <typename Largest>
__device__ float LargestBefore(int chunk, float own, Largest largest_of) {
  float before = -INFINITY;
  for (int i = Lane(); i < chunk; i += kWarp) before = std::max(before, largest_of(i));
  before = WarpMax(before);
  return chunk == 0 ? own : before;
}

// The largest logit of what a warp has of a row without filters, as a score that is not finite
// where a logit is not. kWhole: all of the chunk's logits are of the row.
template <bool kWhole>
__device__ float LargestOf(const ChunkPart& logits, int32_t size) {
  float largest = -INFINITY, products = 0;  // products: NaN where a logit is not finite
  SPECFABRIC_UNROLL
  for (int group = 0; group < kChunkGroups; ++group) {
    SPECFABRIC_UNROLL
    for (int i = 0; i < kFour; ++i) {
      if (!kWhole && PlaceInChunk(group) + i >= size) continue;
      largest = fmaxf(largest, logits.of[group][i]);
      products = fmaf(logits.of[group][i], 0.0f, products);
    }
  }
  return WarpMax(products == 0 ? largest : sampling::kNotFinite);
}

// What the warps of a row tell each other is one word, which is 0 until it is there.
__device__ void Publish(PackedChoice best, PackedChoice* place) {
  __nv_atomic_store_n(place, best, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
__device__ PackedChoice Await(PackedChoice* place) {
  for (;;) {
    const PackedChoice best =
        __nv_atomic_load_n(place, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    if (best != 0) return best;
  }
}

// The part of a row that one warp describes.
struct ChunkInWork {
  const TreeRound& round;
  const float* logits;  // of the chunk
  int32_t first, size;  // its tokens
  FilteredRow filtered;

  __device__ ChunkPart Read() const {
    ChunkPart part = ReadChunk(logits, size, -INFINITY);
    if (filtered.filter.least == 0) return part;
    SPECFABRIC_UNROLL
    for (int group = 0; group < kChunkGroups; ++group) {
      SPECFABRIC_UNROLL
      for (int i = 0; i < kFour; ++i) {
        float& logit = part.of[group][i];
        logit = filtered.Logit(Competitor(logit, first + PlaceInChunk(group) + i), logit);
      }
    }
    return part;
  }

  // The sums without the chunk's factor. Called by all lanes of a warp together.
  __device__ DistributionChunk Describe(ChunkPart part, float reference, int32_t node) const {
    const base::ExpScale scale = base::ScaleFor(round.sampling.temperature);
    SPECFABRIC_UNROLL
    for (auto& four : part.of) {
      SPECFABRIC_UNROLL
      for (float& value : four) value = base::ScaledExp(value, reference, scale);
    }
    DistributionChunk chunk = {.reference = reference, .place = node};
    chunk.sum = ChunkSum(part);
    if (round.verification != speculation::VerificationMethod::kTypical) return chunk;
    part = Read();
    SPECFABRIC_UNROLL
    for (auto& four : part.of) {
      SPECFABRIC_UNROLL
      for (float& logit : four) {
        const float value = base::ScaledExp(logit, reference, scale);
        logit = value > 0.0f ? value * ((logit - reference) * scale.high) : 0.0f;
      }
    }
    chunk.power_sum = ChunkSum(part);
    return chunk;
  }
};

// What only the whole row tells: its chunks' factors, and its totals. max: its largest logit.
// Called by all threads of the block together that knows all chunks to be written.
__device__ void FinishRow(const TreeRound& round, float max, DistributionChunk* chunks, int count,
                          DistributionTotals* totals) {
  const base::ExpScale scale = base::ScaleFor(round.sampling.temperature);
  const bool typical = round.verification == speculation::VerificationMethod::kTypical;
  DistributionTotals total;
  total.sum = OrderedSum(count, [&](int i) {
    const double power = verification::ChunkPower(__ldcg(&chunks[i].reference), max, scale);
    const double factor = base::Exp2(power), sum = __ldcg(&chunks[i].sum) * factor;
    chunks[i].factor = factor;
    chunks[i].sum = sum;
    chunks[i].power_sum =
        typical && sum != 0 ? __ldcg(&chunks[i].power_sum) * factor + sum * power : 0;
    return sum;
  });
  if (typical) total.power_sum = OrderedSum(count, [&](int i) { return chunks[i].power_sum; });
  if (Thread() == 0) *totals = total;
}

// Of rows without filters. A chunk's reference needs the largest logit before it: warps tell each
// other theirs, and wait only for blocks of the same row that come before their own in the grid,
// which a GPU starts first. Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads, 3) void DescribeRows(RoundBatch batch,
                                                                 RowDistributions distributions) {
  AwaitInputs();
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(batch, node);
  if (row.round->sampling.filtered()) return;
  const int chunk = ChunkOfWarp(), count = distributions.chunks;
  const bool some = chunk < count;
  const int64_t place = int64_t{node} * count;
  PackedChoice* const published = distributions.published + place;
  DistributionChunk* const chunks = distributions.distribution_chunks + place;
  const int32_t first = chunk * kRowChunk;
  const ChunkInWork work = {
      *row.round, row.logits + first, first, min(kRowChunk, batch.vocabulary - first), {}};
  ChunkPart part;
  float own = 0;
  if (some) {
    part = work.Read();
    own = work.size == kRowChunk ? LargestOf<true>(part, kRowChunk)
                                 : LargestOf<false>(part, work.size);
    if (Lane() == 0) Publish(Pack(own, 0), published + chunk);
  }
  LetNextBegin();
  __syncthreads();  // an emulated warp cannot wait for one that has not begun
  if (some) {
    const float before =
        LargestBefore(chunk, own, [&](int i) { return ScoreOf(Await(published + i)); });
    const float reference = verification::ChunkReference(
        before, std::max(before, own), base::ScaleFor(row.round->sampling.temperature));
    const DistributionChunk described = work.Describe(part, reference, node);
    if (Lane() == 0) chunks[chunk] = described;
  }
  if (!LastToArrive(&distributions.filters.joins[node].arrived, gridDim.x)) return;
  PackedChoice best = 0;
  for (int i = Lane(); i < count; i += kWarp) best = max(best, Await(published + i));
  const RowFilter filter = {.best = WarpMax(best)};
  __syncthreads();  // all warps have read
  for (int i = Thread(); i < count; i += Threads()) published[i] = 0;
  if (Thread() == 0) distributions.filters.of_node[node] = filter;
  if (!filter.finite()) return;
  FinishRow(*row.round, ScoreOf(filter.best), chunks, count, distributions.totals + node);
}

// Of rows with filters, which EnqueueRowFilters has made. Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void DescribeFilteredRows(
    RoundBatch batch, RowDistributions distributions) {
  AwaitInputs();
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(batch, node);
  if (!row.round->sampling.filtered()) return;
  const FilteredRow filtered = {distributions.filters.of_node[node]};
  if (!filtered.filter.finite()) return;
  const int chunk = ChunkOfWarp(), count = distributions.chunks;
  const int64_t place = int64_t{node} * count;
  const PackedChoice* const bests = distributions.filters.bests + place;
  DistributionChunk* const chunks = distributions.distribution_chunks + place;
  if (chunk < count) {
    const float own = filtered.Largest(bests[chunk]);
    const float before =
        LargestBefore(chunk, own, [&](int i) { return filtered.Largest(bests[i]); });
    const float reference = verification::ChunkReference(
        before, std::max(before, own), base::ScaleFor(row.round->sampling.temperature));
    const int32_t first = chunk * kRowChunk;
    const ChunkInWork work = {*row.round, row.logits + first, first,
                              min(kRowChunk, batch.vocabulary - first), filtered};
    const DistributionChunk described = work.Describe(work.Read(), reference, node);
    if (Lane() == 0) chunks[chunk] = described;
  }
  if (!LastToArrive(&distributions.filters.joins[node].arrived, gridDim.x)) return;
  FinishRow(*row.round, filtered.max(), chunks, count, distributions.totals + node);
}

}  // namespace

size_t RowJoinBytes(int32_t rows, int32_t vocabulary) {
  return rows * (sizeof(RowJoin) + RowFilters::kBins * sizeof(unsigned long long) +
                 ChunksOf(vocabulary) * sizeof(PackedChoice));
}

absl::Status ReserveRowJoins(const base::cuda::Device& device, int32_t rows, int32_t vocabulary,
                             base::cuda::DeviceBuffer* joins) {
  const size_t bytes = RowJoinBytes(rows, vocabulary);
  if (bytes <= joins->bytes()) return absl::OkStatus();
  absl::Status status = joins->Reserve(bytes);
  if (!status.ok()) return status;
  return device.Clear(joins->As<void>(), joins->bytes());
}

size_t RowDistributions::Bytes(const RoundBatch& batch) {
  const size_t chunks = ChunksOf(batch.vocabulary);
  const size_t nodes = batch.nodes, sequences = batch.trees.sequences;
  return (nodes + sequences) * chunks * kRowChunk * sizeof(float) +
         nodes * (chunks * (sizeof(DistributionChunk) + sizeof(double)) +
                  sizeof(DistributionTotals) + sizeof(WantedResidual)) +
         sequences * chunks * (sizeof(double) + sizeof(int32_t)) + RowFilters::Bytes(batch);
}

RowDistributions RowDistributions::In(const RoundBatch& batch, void* workspace, void* joins) {
  RowDistributions distributions = {.chunks = ChunksOf(batch.vocabulary)};
  const size_t chunks = distributions.chunks;
  const size_t nodes = batch.nodes, sequences = batch.trees.sequences;
  distributions.values = static_cast<float*>(workspace);
  distributions.distribution_chunks = reinterpret_cast<DistributionChunk*>(
      distributions.values + (nodes + sequences) * chunks * kRowChunk);
  distributions.totals =
      reinterpret_cast<DistributionTotals*>(distributions.distribution_chunks + nodes * chunks);
  distributions.spare_sums = reinterpret_cast<double*>(distributions.totals + nodes);
  distributions.wanted =
      reinterpret_cast<WantedResidual*>(distributions.spare_sums + sequences * chunks);
  distributions.wanted_sums = reinterpret_cast<double*>(distributions.wanted + nodes);
  distributions.filters = RowFilters::In(batch, distributions.wanted_sums + nodes * chunks, joins);
  distributions.spare_places = reinterpret_cast<int32_t*>(distributions.filters.of_node + nodes);
  distributions.published =
      reinterpret_cast<PackedChoice*>(distributions.filters.histograms + nodes * RowFilters::kBins);
  return distributions;
}

absl::Status CheckRoundBatch(const RoundBatch& batch) {
  constexpr int32_t kMost = 65535;  // of a grid's second dimension
  if (batch.trees.sequences < 1 || batch.nodes < batch.trees.sequences || batch.nodes > kMost ||
      batch.vocabulary < 1 || batch.vocabulary >= kMostVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a round of ", batch.trees.sequences, " trees with ", batch.nodes, " nodes and ",
        batch.vocabulary, " tokens: allowed are 1 tree and more of 1 to ", kMost,
        " nodes together, and 1 to ", kMostVocabulary - 1, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status EnqueueRowDistributions(const RoundBatch& batch, const RowDistributions& distributions,
                                     Stream stream) {
  const ChunkGrid shape = GridOfChunks(batch.nodes, distributions.chunks);
  absl::Status status = Launch("row distributions", DescribeRows, shape.grid, shape.block,
                               {.overlaps = true}, stream, batch, distributions);
  if (!status.ok() || !batch.filtered) return status;
  status.Update(EnqueueRowFilters(batch, distributions.filters, /*only_filtered=*/true, stream));
  if (!status.ok()) return status;
  return Launch("filtered row distributions", DescribeFilteredRows, shape.grid, shape.block,
                {.overlaps = true}, stream, batch, distributions);
}

}  // namespace specfabric::verification::cuda
