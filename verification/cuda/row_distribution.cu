#include "verification/cuda/row_distribution.h"

#include <algorithm>
#include <cmath>

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/exp.h"
#include "verification/cuda/chunk_sum.h"
#include "verification/cuda/round_rows.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::Stream;
using base::cuda::WarpMax;

using verification::kRowChunk;

// The logits that verification::RowDistribution::Open uses: -inf where the filters drop the token.
struct FilteredRow {
  RowFilter filter;

  __device__ float max() const { return ScoreOf(filter.best); }
  __device__ float Logit(PackedChoice token, float logit) const {
    return token < filter.least ? -INFINITY : logit;
  }
  __device__ float LogitAt(const float* logits, int32_t id) const {
    return Logit(Competitor(logits[id], id), logits[id]);
  }
  // The largest of a chunk. If the filters keep any token of a chunk, they keep its best.
  __device__ float Largest(PackedChoice best_of_chunk) const {
    return Logit(best_of_chunk, ScoreOf(best_of_chunk));
  }
};

// The reference of the chunk's unnormalised probabilities. Called by all lanes of its warp
// together.
__device__ float ReferenceOf(const FilteredRow& row, const PackedChoice* bests, int chunk,
                             base::ExpScale scale) {
  float before = -INFINITY;
  for (int i = Lane(); i < chunk; i += kWarp) before = std::max(before, row.Largest(bests[i]));
  before = WarpMax(before);
  const float own = row.Largest(bests[chunk]);
  if (chunk == 0) before = own;
  return verification::ChunkReference(before, std::max(before, own), scale);
}

// Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void ComputeProbs(RoundBatch batch, RowDistributions distributions) {
  const int chunk = ChunkOfWarp();
  if (chunk >= distributions.chunks) return;
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(batch, node);
  const FilteredRow filtered = {distributions.filters.of_node[node]};
  if (!filtered.filter.finite()) return;
  const int64_t place = int64_t{node} * distributions.chunks;
  const base::ExpScale scale = base::ScaleFor(row.round->sampling.temperature);
  const float reference = ReferenceOf(filtered, distributions.filters.bests + place, chunk, scale);
  const int32_t first = chunk * kRowChunk;
  float* const values = distributions.values + (place + chunk) * kRowChunk;
  const auto logit_at = [&](int i) {
    return first + i < batch.vocabulary ? filtered.LogitAt(row.logits, first + i) : -INFINITY;
  };

  DistributionChunk distribution;
  const double power = verification::ChunkPower(reference, filtered.max(), scale);
  distribution.factor = base::Exp2(power);
  distribution.sum = distribution.factor * ChunkSum([&](int i) {
                       values[i] = base::ScaledExp(logit_at(i), reference, scale);
                       return values[i];
                     });
  if (row.round->verification == speculation::VerificationMethod::kTypical &&
      distribution.sum != 0) {
    const double powers = ChunkSum([&](int i) {
      return values[i] > 0.0f ? values[i] * ((logit_at(i) - reference) * scale.high) : 0.0f;
    });
    distribution.power_sum = powers * distribution.factor + distribution.sum * power;
  }
  if (Lane() == 0) distributions.distribution_chunks[place + chunk] = distribution;
}

}  // namespace

size_t RowDistributions::Bytes(const RoundBatch& batch) {
  const size_t chunks = ChunksOf(batch.vocabulary);
  const size_t a_node = chunks * (kRowChunk * sizeof(float) + sizeof(DistributionChunk));
  return batch.nodes * a_node + batch.trees.sequences * chunks * sizeof(double) +
         RowFilters::Bytes(batch);
}

RowDistributions RowDistributions::In(const RoundBatch& batch, void* workspace) {
  RowDistributions distributions = {.chunks = ChunksOf(batch.vocabulary)};
  const size_t parts = static_cast<size_t>(batch.nodes) * distributions.chunks;
  distributions.values = static_cast<float*>(workspace);
  distributions.distribution_chunks =
      reinterpret_cast<DistributionChunk*>(distributions.values + parts * kRowChunk);
  distributions.spare_sums = reinterpret_cast<double*>(distributions.distribution_chunks + parts);
  const size_t sums = static_cast<size_t>(batch.trees.sequences) * distributions.chunks;
  distributions.filters = RowFilters::In(batch, distributions.spare_sums + sums);
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
  absl::Status filtered = EnqueueRowFilters(batch, distributions.filters, stream);
  if (!filtered.ok()) return filtered;
  const ChunkGrid shape = GridOfChunks(batch.nodes, distributions.chunks);
  return Launch("row distributions", ComputeProbs, shape.grid, shape.block, stream, batch,
                distributions);
}

}  // namespace specfabric::verification::cuda
